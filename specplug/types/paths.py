"""Paths through draft trees, from the context to each node.  All loops run over N; nothing is read back."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

ROOT = -1
"""Parent of the nodes that follow the last context token."""


def along_paths(certain: Tensor, parents: Tensor | None) -> tuple[Tensor, Tensor]:
    """Multiply confidences along each node's path from the context, one after another.

    The order is part of the result: a parallel product rounds differently, and may rise along a chain.

    Args:
        certain: [B, N] float32, confidences, 0 where there is no draft token.
        parents: [B, N] int32; None for chains.

    Returns:
        [B, N], the probability that the token is reached and accepted; and [B, N], its sum along the path, which is
        the expected number of accepted tokens of the path that ends there.
    """
    if not certain.shape[1]:
        return certain, certain
    if parents is None:
        survival = torch.stack([*accumulate(certain.unbind(1), torch.mul)], 1)
        return survival, survival.cumsum(1)
    survival = certain.clone()
    gain = torch.zeros_like(certain)
    for node in range(certain.shape[1]):
        parent = parents[:, node].long()
        is_root = parent < 0
        index = parent.clamp(min=0)[:, None]
        above = torch.where(is_root, 1.0, survival.gather(1, index)[:, 0])
        survival[:, node] = certain[:, node] * above
        gain_above = torch.where(is_root, 0.0, gain.gather(1, index)[:, 0])
        gain[:, node] = gain_above + survival[:, node]
    return survival, gain


def survival_in_rounds(certain: Tensor, parents: Tensor) -> Tensor:
    """Return the first result of `along_paths` for trees, but for rounding, in log2 N rounds instead of N.

    Each round doubles the length of the paths whose confidences are multiplied.
    """
    survival = certain
    up = parents.long()
    for _ in range((parents.shape[1] - 1).bit_length()):
        above = up.clamp(min=0)
        survival = torch.where(up < 0, survival, survival * survival.gather(1, above))
        up = torch.where(up < 0, up, up.gather(1, above))
    return survival


def best_path(gain: Tensor, lengths: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Return the path with the most expected accepted tokens of each tree; a tie goes to the node of highest index.

    Args:
        gain: [B, N], expected accepted tokens of the path that ends at each node.
        lengths: [B] int32, nodes per tree; those beyond it are ignored.
        parents: [B, N] int32.

    Returns:
        [B, N] int64, the nodes of the path in order, undefined after the last one; and [B] int32, the path length.
    """
    draft_length = parents.shape[1]
    if draft_length == 0:
        return parents.long(), torch.zeros_like(lengths)
    places = torch.arange(draft_length, device=parents.device)
    inside = places < lengths[:, None]
    node = draft_length - 1 - torch.where(inside, gain, -1.0).flip(1).argmax(1)
    # leaf first
    node = torch.where(lengths > 0, node, ROOT)
    backwards = []
    for _ in range(draft_length):
        backwards.append(node)
        up = parents.gather(1, node.clamp(min=0)[:, None])[:, 0].long()
        node = torch.where(node >= 0, up, ROOT)
    path = torch.stack(backwards, 1).flip(1)  # ROOT entries first, then context to leaf
    lengths = (path >= 0).sum(1).to(torch.int32)
    shift = places + (draft_length - lengths[:, None])
    return path.gather(1, shift.clamp(max=draft_length - 1).long()).clamp(min=0), lengths


def gather_nodes(tensor: Tensor, nodes: Tensor) -> Tensor:
    """Return the entries of `tensor` [B, N] or [B, N, V] at `nodes` [B, N] int64, in that order."""
    index = nodes if tensor.ndim == 2 else nodes[:, :, None].expand(-1, -1, tensor.shape[2])
    return tensor.gather(1, index)


def compacted(kept: Tensor, parents: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return an order of the nodes that has the kept ones first, and the parents of the nodes in that order.

    Args:
        kept: [B, N] bool; with a node all its ancestors are kept.
        parents: [B, N] int32; None for chains.

    Returns:
        [B, N] int64, indices of the kept nodes in ascending order, then of the others; and [B, N] int32, the parents of
        those nodes as indices into that order, undefined after the kept ones; None for chains.
    """
    order = torch.sort((~kept).to(torch.uint8), dim=1, stable=True).indices
    if parents is None:
        return order, None
    place = kept.cumsum(1).to(torch.int32) - 1  # new index of each kept node
    above = parents.gather(1, order).long()
    return order, torch.where(above < 0, ROOT, place.gather(1, above.clamp(min=0)))
