"""Trees in the form for CPUs, which compiles it: all nodes of the candidates' paths by depth, and then the likeliest.

The kernels do the same with a thread per candidate.  A node is known by its depth and the index of its first candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from specplug.lookup import arithmetic
from specplug.lookup import layout as at
from specplug.lookup.candidates import origin_of, owner_of, predicted_token
from specplug.lookup.layout import INDEX, KIND, LENGTH, PLACE, RANK, TOKEN, WEIGHT, Drafts, State
from specplug.lookup.learning import chain_token, confidence


def grow(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, limit: int, vocab_size: int, row: int,
    drafts: Drafts,
) -> int:  # fmt: skip
    """Write a row's tree, and return the number of its nodes; see `plain.grow`."""
    nodes = state.nodes[row]
    depths = 0
    alive = number
    while alive and depths < limit:
        alive = _consider(state, slot, text, n, candidates, alive, depths, vocab_size, nodes)
        depths += 1
    drafted = 0
    while drafted < limit:
        depth, first = _likeliest(nodes, depths)
        if depths == 0 or nodes[at.NODE_SURVIVAL, depth, first] < state.figures[at.LEAST]:
            break
        nodes[at.NODE_SURVIVAL, depth, first] = 0
        nodes[at.NODE_NUMBER, depth, first] = drafted
        parent = nodes[at.NODE_NUMBER, depth - 1, nodes[at.NODE_PARENT, depth, first]] if depth else -1
        _write(state, slot, nodes[:, depth, first], drafted, parent, n, row, drafts)
        drafted += 1
    return drafted


@register_jitable
def _consider(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, depth: int, vocab_size: int, nodes: Any
) -> int:
    """Write the nodes at a depth, and return how many candidates predict a token there."""
    facts = state.slots[slot]
    nodes[at.NODE_SURVIVAL, depth, :] = 0
    alive = 0
    for k in range(number):
        owner = owner_of(facts, candidates[k, INDEX])
        token = predicted_token(state, text, n, owner, candidates[k, KIND], candidates[k, PLACE], depth, vocab_size)
        is_open = depth == 0
        if depth > 0:
            # no node after one that is too unlikely can be drafted
            before = nodes[at.NODE_NUMBER, depth - 1, candidates[k, INDEX]]
            is_open = nodes[at.NODE_REACHED, depth - 1, before] >= state.figures[at.LEAST]
        if token >= 0 and is_open:
            for column in range(TOKEN):
                candidates[alive, column] = candidates[k, column]
            candidates[alive, TOKEN] = token
            alive += 1
    for k in range(alive):
        vote_row = arithmetic.vote_row(candidates[k, KIND], candidates[k, LENGTH] + depth)
        log_odds = arithmetic.log_odds(int(state.counts[vote_row, 0]), int(state.counts[vote_row, 1]))
        candidates[k, WEIGHT] = arithmetic.weight(log_odds, candidates[k, RANK])
    # The node before the k-th candidate's token, by its first candidate's index, is in that candidate's column.
    for k in range(alive):
        node = nodes[:, depth, candidates[k, INDEX]]
        parent = nodes[at.NODE_NUMBER, depth - 1, candidates[k, INDEX]] if depth else 0
        first = k
        total = 0
        for other in range(alive):
            before = nodes[at.NODE_NUMBER, depth - 1, candidates[other, INDEX]] if depth else 0
            if before == parent:
                total += candidates[other, WEIGHT]
                if other < first and candidates[other, TOKEN] == candidates[k, TOKEN]:
                    first = other
        node[at.NODE_NUMBER] = candidates[first, INDEX]
        node[at.NODE_PARENT] = parent
        if first == k:
            _judge(state, slot, text, n, candidates, alive, k, depth, total, nodes)
    return alive


@register_jitable
def _judge(
    state: State, slot: int, text: Any, n: int, candidates: Any, alive: int, k: int, depth: int, total: int, nodes: Any
) -> None:
    """Write the node of the k-th candidate's token, of which it is the first candidate."""
    facts = state.slots[slot]
    parent = nodes[at.NODE_PARENT, depth, candidates[k, INDEX]]
    score = 0
    longest = 0
    support = 0
    origins = 0
    near = 0
    source = 3
    for other in range(k, alive):
        before = nodes[at.NODE_NUMBER, depth - 1, candidates[other, INDEX]] if depth else 0
        if before == parent and candidates[other, TOKEN] == candidates[k, TOKEN]:
            kind = candidates[other, KIND]
            score += candidates[other, WEIGHT]
            longest = max(longest, candidates[other, LENGTH] + depth)
            support += 1
            origin = origin_of(kind)
            if origins & 1 == 0 and origin < 4:
                source = 2 if origin == 2 else int(candidates[other, PLACE] + depth < facts[at.START])
            origins |= origin
            near |= kind >= at.NEAR
    size = arithmetic.length_class(longest)
    share = arithmetic.share_class(score, total)
    last = int(nodes[at.NODE_TOKEN, depth - 1, parent] if depth else text[n - 1])
    token = candidates[k, TOKEN]
    owner = facts[at.OWNER]
    keys = arithmetic.judging_rows(token, last, owner, size, share, support, facts[at.HIT_RATE], origins, near)
    level = confidence(state, keys[0], keys[1], keys[2])
    survival: Any = np.int64(nodes[at.NODE_REACHED, depth - 1, parent] if depth else at.SURE)
    node = nodes[:, depth, candidates[k, INDEX]]
    node[at.NODE_REACHED] = node[at.NODE_SURVIVAL] = survival * level // at.LEVELS
    node[at.NODE_TOKEN] = token
    node[at.NODE_LEVEL] = level
    node[at.NODE_SOURCE] = source
    node[at.NODE_EVIDENCE] = keys[0]
    node[at.NODE_CONTEXT] = keys[1]
    node[at.NODE_OWN] = keys[2]


@register_jitable
def _likeliest(nodes: Any, depths: int) -> tuple[int, int]:
    """Return the first of the likeliest nodes, by depth and index."""
    best = 0
    found = 0, 0
    for depth in range(depths):
        for index in range(at.CANDIDATES):
            if nodes[at.NODE_SURVIVAL, depth, index] > best:
                best = nodes[at.NODE_SURVIVAL, depth, index]
                found = depth, index
    return found


@register_jitable
def _write(state: State, slot: int, node: Any, number: int, parent: int, n: int, row: int, drafts: Drafts) -> None:
    drafts.ids[row, number] = node[at.NODE_TOKEN]
    drafts.confidence[row, number] = np.float32(node[at.NODE_LEVEL] / at.LEVELS)
    drafts.sources[row, number] = node[at.NODE_SOURCE]
    drafts.parents[row, number] = parent
    if state.slots[slot, at.CHAIN_FOR] != n:
        rows = node[at.NODE_EVIDENCE], node[at.NODE_CONTEXT], node[at.NODE_OWN]
        chain_token(state.chain[slot], number, node[at.NODE_TOKEN], rows[0], rows[1], rows[2], parent)
