"""The links of draft trees, from their masks, and of chains."""

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


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    top_scores_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill in what verification needs of chains of n = `draft_token_num` nodes, which models draft with `topk` 1.

    Args:
        parent_list, top_scores_index, depth: not used, as chains do not branch.
        seq_lens: [bs], the position of each root.
        tree_mask: [bs * n * n] bool; becomes which node sees which.
        positions, retrieve_index, retrieve_next_token, retrieve_next_sibling: see `reconstruct_indices_from_tree_mask`.
        tree_mask_mode: 1, masks of the nodes alone.
    """
    if topk != 1 or tree_mask_mode != 1:
        raise NotImplementedError("the tests draft with models in chains only")
    n, bs = draft_token_num, len(seq_lens)
    nodes = torch.arange(n)
    tree_mask.copy_(torch.ones(n, n, dtype=torch.bool).tril().expand(bs, n, n).flatten())
    positions.copy_((seq_lens[:, None] + nodes).flatten())
    retrieve_index.copy_(torch.arange(bs * n).view(bs, n))
    retrieve_next_token.copy_(torch.where(nodes < n - 1, nodes + 1, -1))
    retrieve_next_sibling.fill_(-1)


def _first(found: Tensor) -> Tensor:
    """Return, of [bs, n, n] bool, the first place of each last row that is true, or -1: [bs, n] int64."""
    return torch.where(found.any(-1), found.int().argmax(-1), -1)
