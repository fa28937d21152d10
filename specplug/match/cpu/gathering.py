"""Candidates for the next token from own text and references, remembered responses, and the corpus index."""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.aligning import align, align_corpus, put
from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import CORPUS, NAMED, OWN, RESPONSE
from specplug.match.cpu.recency import search
from specplug.match.cpu.searching import nearest


@compiled
def gather(state: Any, slot: int) -> int:
    """Write the candidates for a row's next token to row 0 of the workspace, and return their number."""
    texts, workspace, min_n = state.texts, state.workspace, state.min_n
    count = 0
    for k in range(texts.candidates[slot]):
        if texts.match_lengths[slot, k] >= min_n:
            count = put(workspace, 0, count, texts.places[slot, k], texts.match_lengths[slot, k], OWN)
    count = _put_responses(state, slot, 0, count, texts.text[slot], texts.lengths[slot])
    count = align(state, slot, count, OWN)
    count = align(state, slot, count, RESPONSE)
    begin = count
    points = state.rows.points[slot]
    count = _put_corpus(state, slot, 0, count, points, texts.text[slot], texts.lengths[slot])
    return align_corpus(state, slot, begin, count)


@compiled
def gather_anew(state: Any, slot: int, node: int, depth: int) -> int:
    """Write candidates for the token after `depth` drafted tokens to the workspace, if no earlier candidate is left."""
    texts, workspace, max_n, min_n = state.texts, state.workspace, state.max_n, state.min_n
    n = texts.lengths[slot]
    known = min(n, max_n)
    for k in range(known):
        workspace.context[k] = texts.text[slot, n - known + k]
    for k in range(depth):
        workspace.context[known + k] = workspace.drafted[k]
    heads = texts.heads[slot, : texts.trees[slot]]
    found = search(
        texts.text[slot],
        -1,
        0,
        texts.empty,
        heads,
        texts.children[slot],
        0,
        workspace.context,
        known + depth,
        max_n,
        workspace.places,
        workspace.lengths,
    )
    count = 0
    for k in range(found):
        if workspace.lengths[k] >= min_n:
            count = put(workspace, node, count, workspace.places[k], workspace.lengths[k], OWN)
    count = _put_responses(state, slot, node, count, workspace.context, known + depth)
    return _put_corpus(state, slot, node, count, state.rows.points[slot, :0], workspace.context, known + depth)


@compiled
def _put_responses(state: Any, slot: int, node: int, count: int, context: Any, end: int) -> int:
    """Add the responses' candidates for the `end` tokens of `context`."""
    memory, workspace, owner = state.memory, state.workspace, state.rows.owners[slot]
    if owner == 0 or memory.ends[0] == 0:
        return count
    size = memory.text.size
    oldest = max(memory.ends[0] + 1 - size, 0)
    found = search(
        memory.text,
        size - 1,
        oldest,
        memory.owners,
        memory.heads,
        memory.children,
        owner,
        context,
        end,
        state.max_n,
        workspace.places,
        workspace.lengths,
    )
    for k in range(found):
        if workspace.lengths[k] >= state.min_n:
            count = put(workspace, node, count, workspace.places[k], workspace.lengths[k], RESPONSE)
    return count


@compiled
def _put_corpus(state: Any, slot: int, node: int, count: int, points: Any, context: Any, end: int) -> int:
    """Add the corpus index's candidates for the `end` tokens of `context`; `points`: see `nearest`."""
    corpus_index, rows, workspace = state.corpus_index, state.rows, state.workspace
    if rows.tenants[slot] == 0:
        return count
    found = nearest(corpus_index, rows.tenants[slot], rows.named[slot], points, context, end, state.max_n)
    for k in range(found):
        if corpus_index.matches[k] >= state.min_n:
            count = put(
                workspace,
                node,
                count,
                corpus_index.found[k],
                corpus_index.matches[k],
                NAMED if corpus_index.named[k] else CORPUS,
            )
    return count
