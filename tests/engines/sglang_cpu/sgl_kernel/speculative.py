"""The links of draft trees, from their masks."""

from __future__ import annotations

import torch
from torch import Tensor


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Fill in what verification needs to walk trees of n = `draft_token_num` nodes.

    Args:
        tree_mask: [bs * n * n] bool; (b, i, j) is whether node i sees node j.  Of those before it, the last one that it
            sees is its parent; without any, it hangs nowhere, as the root does.
        verified_seq_len: [bs], the position of each root.
        positions: [bs * n] int64; becomes each node's.
        retrive_index: [bs, n] int64; becomes each node's place in flat tensors.
        retrive_next_token: [bs, n] int64; becomes each node's first child, or -1.
        retrive_next_sibling: [bs, n] int64; becomes the next child of the same parent, or -1.
    """
    n, nodes = draft_token_num, torch.arange(draft_token_num)
    sees = tree_mask[: batch_size * n * n].view(batch_size, n, n) & torch.ones(n, n, dtype=torch.bool).tril(-1)
    parent = torch.where(sees, nodes, -1).amax(-1)  # [bs, n]
    positions.copy_((verified_seq_len[:batch_size, None] + sees.sum(-1)).flatten())
    retrive_index.copy_(torch.arange(batch_size * n).view(batch_size, n))
    is_child = parent[:, None, :] == nodes[:, None]  # (b, parent, child)
    retrive_next_token.copy_(_first(is_child))
    same = (parent[:, :, None] == parent[:, None, :]) & (parent >= 0)[:, :, None]
    retrive_next_sibling.copy_(_first(same & torch.ones(n, n, dtype=torch.bool).triu(1)))


def _first(found: Tensor) -> Tensor:
    """Return, of [bs, n, n] bool, the first place of each last row that is true, or -1: [bs, n] int64."""
    return torch.where(found.any(-1), found.int().argmax(-1), -1)
