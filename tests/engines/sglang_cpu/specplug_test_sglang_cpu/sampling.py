"""Sampling in verification, which SGLang has on GPUs only: on a CPU it takes the likeliest token at any temperature.

A verified node's children are drafts without a distribution: a child is taken with the target's own probability, and
where none is, the next token comes from what the target has left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def install() -> None:
    """Give SGLang's verification what it calls on a GPU."""
    import sglang.srt.speculative.eagle_utils as module

    def verify_uses_greedy(*, is_all_greedy: bool, **others: Any) -> bool:
        return is_all_greedy

    module._verify_uses_greedy = verify_uses_greedy
    module.sampling_softmax = softmax
    module.top_k_renorm_prob = top_k
    module.top_p_renorm_prob = top_p
    module.tree_speculative_sampling_target_only = sample_tree


def softmax(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Return the distribution [rows, V] float32 of logits [rows, V] at temperatures [rows, 1]."""
    return (logits.float() / temperatures).softmax(-1)


def top_k(probs: Tensor, ks: Tensor) -> Tensor:
    """Keep, of probabilities [rows, V], the `ks` [rows] largest, and those equal to the least of them."""
    ranked = probs.sort(dim=-1, descending=True).values
    least = ranked.gather(-1, ks.long().clamp(1, probs.shape[-1])[:, None] - 1)
    kept = probs.where(probs >= least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p(probs: Tensor, ps: Tensor) -> Tensor:
    """Keep, of probabilities [rows, V], the largest until they sum to `ps` [rows]."""
    ranked, order = probs.sort(dim=-1, descending=True)
    kept = ranked.where(ranked.cumsum(-1) - ranked < ps[:, None], 0.0)
    kept = torch.zeros_like(probs).scatter(-1, order, kept)
    return kept / kept.sum(-1, keepdim=True)


def sample_tree(
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
    """Verify trees as `sgl_kernel.verify` describes them, by sampling.

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
