"""Verification of draft trees by sampling, and the cuts of distributions that it samples from.

A verified node's children are drafts without a distribution: a child is taken with the target's own probability, and
where none is, the next token comes from what the target has left.
"""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_renorm_prob(probs: Tensor, ks: Tensor) -> Tensor:
    """Keep, of probabilities [rows, V], the `ks` [rows] largest, and those equal to the least of them."""
    ranked = probs.sort(dim=-1, descending=True).values
    least = ranked.gather(-1, ks.long().clamp(1, probs.shape[-1])[:, None] - 1)
    kept = probs.where(probs >= least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, ps: Tensor) -> Tensor:
    """Keep, of probabilities [rows, V], the largest until they sum to `ps` [rows]."""
    ranked, order = probs.sort(dim=-1, descending=True)
    kept = ranked.where(ranked.cumsum(-1) - ranked < ps[:, None], 0.0)
    kept = torch.zeros_like(probs).scatter(-1, order, kept)
    return kept / kept.sum(-1, keepdim=True)


def tree_speculative_sampling_target_only(
    *,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
) -> None:
    """Verify trees as `sgl_kernel.verify` describes them.

    Args:
        uniform_samples: [bs, n] float32, one number per node that has children.
        uniform_samples_for_final_sampling: [bs] float32, one for the token after the last accepted node.
        target_probs: [bs, n, V] float32, the target's distribution after each node.
        draft_probs, deterministic: not used.
        threshold_single: probability from which on a child is taken for certain.
        threshold_acc: divides the probability with which a child, or one before it, is taken.
    """
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    tokens, places = candidates.tolist(), retrive_index.tolist()
    coins, depth = uniform_samples.tolist(), accept_index.shape[1]
    for row, tree in enumerate(tokens):
        path, left = [0], target_probs[row, 0]
        while len(path) < depth:
            node = child[row][path[-1]]
            coin, taken, left = coins[row][path[-1]], 0.0, target_probs[row, path[-1]].clone()
            while node != -1:
                chance = float(left[tree[node]])
                taken += chance
                if coin < taken / threshold_acc or chance >= threshold_single:
                    break
                left[tree[node]] = 0.0  # a second child with this token has nothing to add
                node = sibling[row][node]
            if node == -1:
                break
            path.append(node)
            left = target_probs[row, node]
        follows = [*(tree[node] for node in path[1:]), draw(left, float(uniform_samples_for_final_sampling[row]))]
        for number, (node, token) in enumerate(zip(path, follows, strict=True)):
            accept_index[row, number] = places[row][node]
            predicts[places[row][node]] = token
        accept_token_num[row] = len(path) - 1


def draw(weights: Tensor, coin: float) -> int:
    """Return a token of weights [V], which need not sum to 1, for a number in [0, 1)."""
    cumulated = weights.double().cumsum(-1)
    return min(int(torch.searchsorted(cumulated, coin * cumulated[-1], right=True)), int(weights.nonzero().max()))
