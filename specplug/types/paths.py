"""Paths through draft trees, from the context to each node.  All loops run over N; nothing is read back."""

from __future__ import annotations

import torch
from torch import Tensor

ROOT = -1
"""Parent of the nodes that follow the last context token."""


def along_paths(certain: Tensor, parents: Tensor | None) -> tuple[Tensor, Tensor]:
    """Multiply confidences along each node's path from the context.

    Args:
        certain: [B, N] float32, confidences, 0 where there is no draft token.
        parents: [B, N] int32; None for chains.

    Returns:
        [B, N], the probability that the token is reached and accepted; and [B, N], its sum along the path, which is
        the expected number of accepted tokens of the path that ends there.
    """
    if parents is None:
        survival = certain.cumprod(1)
        return survival, survival.cumsum(1)
    survival, gain = certain.clone(), torch.zeros_like(certain)
    for node in range(certain.shape[1]):
        parent = parents[:, node].long()
        is_root = parent < 0
        index = parent.clamp(min=0)[:, None]
        above = torch.where(is_root, 1.0, survival.gather(1, index)[:, 0])
        survival[:, node] = certain[:, node] * above
        gain_above = torch.where(is_root, 0.0, gain.gather(1, index)[:, 0])
        gain[:, node] = gain_above + survival[:, node]
    return survival, gain


def path_to(node: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Return the path from the context to one node of each tree.

    Args:
        node: [B] int64, `ROOT` for no node.
        parents: [B, N] int32, N > 0.

    Returns:
        [B, N] int64, the nodes of the path in order, undefined after the last one; and [B] int32, the path length.
    """
    draft_length = parents.shape[1]
    backwards = []  # leaf first
    for _ in range(draft_length):
        backwards.append(node)
        up = parents.gather(1, node.clamp(min=0)[:, None])[:, 0].long()
        node = torch.where(node >= 0, up, ROOT)
    path = torch.stack(backwards, 1).flip(1)  # ROOT entries first, then context to leaf
    lengths = (path >= 0).sum(1).to(torch.int32)
    shift = torch.arange(draft_length, device=parents.device)[None] + (draft_length - lengths[:, None])
    return path.gather(1, shift.clamp(max=draft_length - 1).long()).clamp(min=0), lengths
