"""Greedy verification of draft trees.

A tree of n nodes per request, the root first.  Node i's token is `candidates[b, i]` and its place in the batch's flat
tensors `retrive_index[b, i]`; its first child is `retrive_next_token[b, i]`, its next sibling
`retrive_next_sibling[b, i]`, and -1 is none.
"""

from __future__ import annotations

from torch import Tensor


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow, from the root, the children that hold the target's own choice.

    Args:
        predicts: [bs * n] int32; at the place of each accepted node becomes the token that follows it.
        accept_index: [bs, depth] int32, filled with -1; becomes the places of the accepted nodes, root first.
        accept_token_num: [bs] int32; becomes how many drafts were accepted.
        candidates: [bs, n] int64, see above, as are `retrive_index`, `retrive_next_token`, `retrive_next_sibling`.
        target_predict: [bs, n] int64, the target's choice after each node.
    """
    tokens, places, choices = candidates.tolist(), retrive_index.tolist(), target_predict.flatten().tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    depth = accept_index.shape[1]
    for row, tree in enumerate(tokens):
        path, node = [0], 0
        while len(path) < depth:
            wanted = choices[places[row][path[-1]]]
            node = child[row][path[-1]]
            while node != -1 and tree[node] != wanted:
                node = sibling[row][node]
            if node == -1:
                break
            path.append(node)
        for number, node in enumerate(path):
            accept_index[row, number] = places[row][node]
            predicts[places[row][node]] = choices[places[row][node]]
        accept_token_num[row] = len(path) - 1


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Write each request's last emitted token to `bonus_tokens` [bs] int32.

    Args:
        accept_tokens: of `accept_stride` elements per request, its emitted tokens first.
        accept_lens: [bs], how many these are.
    """
    bonus_tokens.copy_(accept_tokens.view(-1, accept_stride).gather(1, accept_lens.long()[:, None] - 1)[:, 0])
