"""Candidates for the next token: from own text and references, remembered responses, siblings and the corpus index.

A source text is followed on after an insertion, a deletion or a replaced word.  If no match is long enough to locate
the text in its source, the newest token is searched for around the expected next place (the anchor); if it is not
found, the expected place itself is tried.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.evidence import ALIGNED, CORPUS, FROM, NAMED, NEAR, OWN, RESPONSE
from specplug.match.cpu.intrinsics import int64_at
from specplug.match.cpu.recency import owner_of, search
from specplug.match.cpu.rows import MOST_SIBLINGS
from specplug.match.cpu.searching import document_at, nearest, token_after
from specplug.match.cpu.texts import MOST_CANDIDATES
from specplug.match.cpu.voting import OF_SIBLING, token_at

WINDOW, BACK = 12, 4
"""Tokens after and before the last known place in which a diverged text is searched for."""

FORGET_ANCHOR = 64
"""Number of tokens after which the search is given up."""

FOLLOWED = 2
"""Match length from which a text counts as following the matched place."""

OF_CORPUS = CORPUS
"""Index of the corpus index's anchor, whatever corpora the request names."""


@compiled
def put(workspace: Any, node: int, count: int, at: int, length: int, kind: int) -> int:
    """Add a candidate to a node that has `count`; return the new count."""
    workspace.at[node, count], workspace.length[node, count], workspace.kind[node, count] = at, length, kind
    return count + 1


@compiled
def align(state: Any, slot: int, count: int, source: int) -> int:
    """Mark candidates near the anchor in own text or responses, and add the anchor as a candidate if it is missing.

    `count` is the number of candidates in row 0 of the workspace, of which the new one is returned.
    """
    texts, memory, rows, workspace = state.texts, state.memory, state.rows, state.workspace
    newest = texts.text[slot, texts.lengths[slot] - 1]
    longest, place = 0, 0
    for k in range(count):
        if workspace.kind[0, k] & FROM == source and workspace.length[0, k] >= longest:
            longest, place = workspace.length[0, k], workspace.at[0, k]
    if longest >= FOLLOWED:
        rows.anchors[slot, source], rows.ages[slot, source] = place, 0
        return count
    place = rows.anchors[slot, source]
    stop = texts.lengths[slot] if source == OWN else memory.ends[0]
    if place == 0 or place >= stop or rows.ages[slot, source] >= FORGET_ANCHOR:
        return count
    if source == RESPONSE and (rows.owners[slot] == 0 or memory.ends[0] - place > memory.text.size // 2):
        return count
    found = _search_nearby(state, slot, source, place, stop, newest)
    place = abs(found)
    if not _may_read(state, slot, source, place):
        return count
    rows.anchors[slot, source] = place
    seen = False
    for k in range(count):
        if workspace.kind[0, k] == source and abs(workspace.at[0, k] - place) < WINDOW:
            seen = seen or workspace.at[0, k] == place
            workspace.kind[0, k] = source + NEAR
    if not seen and int(found > 0) >= state.min_n:
        count = put(workspace, 0, count, place, int(found > 0), source + ALIGNED)
    return count


@compiled
def align_corpus(state: Any, slot: int, begin: int, count: int) -> int:
    """Run `align` for the corpus index, whose candidates start at `begin`, best first; stays within one document."""
    texts, rows, workspace = state.texts, state.rows, state.workspace
    bounds = rows.bounds[slot]
    if count > begin and workspace.length[0, begin] >= FOLLOWED:
        place = workspace.at[0, begin]
        rows.anchors[slot, OF_CORPUS], rows.ages[slot, OF_CORPUS] = place, 0
        _set_bounds(state, slot, place)
        return count
    place = rows.anchors[slot, OF_CORPUS]
    if not bounds[0] < place < bounds[1] or rows.ages[slot, OF_CORPUS] >= FORGET_ANCHOR:
        return count
    found = _search_nearby_corpus(bounds, place, texts.text[slot, texts.lengths[slot] - 1])
    rows.anchors[slot, OF_CORPUS] = place = abs(found)
    seen = False
    for k in range(begin, count):
        if bounds[0] < workspace.at[0, k] < bounds[1] and abs(workspace.at[0, k] - place) < WINDOW:
            seen = seen or workspace.at[0, k] == place
            workspace.kind[0, k] += NEAR
    if not seen and int(found > 0) >= state.min_n:
        count = put(workspace, 0, count, place, int(found > 0), CORPUS + ALIGNED)
    return count


@compiled
def _set_bounds(state: Any, slot: int, place: int) -> None:
    """Record the bounds of the document of the corpus index's best candidate, at `place`."""
    corpus_index, bounds = state.corpus_index, state.rows.bounds[slot]
    segment = corpus_index.segments[0]
    document = document_at(corpus_index, segment, place - corpus_index.texts[segment])
    starts = carray(int64_at(corpus_index.starts[segment]), corpus_index.documents[segment] + 1)
    bounds[0] = corpus_index.texts[segment] + max(starts[document], 0)
    bounds[1] = corpus_index.texts[segment] + min(starts[document + 1], corpus_index.lengths[segment])


@compiled
def _search_nearby_corpus(bounds: Any, place: int, newest: int) -> int:
    """Search like `_search_nearby`, between `bounds`."""
    if newest < 0:
        return -place
    for distance in range(WINDOW):
        forward, back = place + distance, place - distance
        if forward < bounds[1] and token_after(forward - 1) == newest:
            return forward
        if 0 < distance <= BACK and back > bounds[0] and token_after(back - 1) == newest:
            return back
    return -place


@compiled
def _may_read(state: Any, slot: int, source: int, place: int) -> bool:
    """Return whether a slot may read the token at `place`: the text that it followed may have ended before it."""
    memory = state.memory
    return source == OWN or owner_of(memory.owners, memory.text.size - 1, place + 1) == state.rows.owners[slot]


@compiled
def _search_nearby(state: Any, slot: int, source: int, place: int, stop: int, newest: int) -> int:
    """Return the place after `newest` that is nearest to `place`, forward before back; -place if there is none."""
    if newest < 0:
        return -place
    for distance in range(WINDOW):
        forward, back = place + distance, place - distance
        if forward < stop and _may_read(state, slot, source, forward):
            found = token_at(state, slot, source, forward - 1)
            if found == newest:
                return forward
        if 0 < distance <= BACK and back > 1 and _may_read(state, slot, source, back):
            found = token_at(state, slot, source, back - 1)
            if found == newest:
                return back
    return -place


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
    count = _put_siblings(state, slot, 0, count, texts.text[slot], texts.lengths[slot])
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
    count = _put_siblings(state, slot, node, count, workspace.context, known + depth)
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
def _put_siblings(state: Any, slot: int, node: int, count: int, context: Any, end: int) -> int:
    """Add the candidates of what the slot's siblings have emitted, those of the next in the ring first."""
    texts, workspace, siblings, shared = state.texts, state.workspace, state.rows.siblings, state.rows.shared
    sibling, room = siblings[slot], count + MOST_CANDIDATES
    for _ in range(MOST_SIBLINGS):
        if sibling == slot or count == room:
            break
        found = search(
            texts.text[sibling],
            -1,
            0,
            texts.empty,
            texts.heads[sibling, : texts.trees[sibling]],
            texts.children[sibling],
            0,
            context,
            end,
            state.max_n,
            workspace.places,
            workspace.lengths,
        )
        for k in range(found):
            is_output = workspace.places[k] > shared[sibling]
            if is_output and workspace.lengths[k] >= state.min_n and count < room:
                place = OF_SIBLING + sibling * texts.text.shape[1] + workspace.places[k]
                count = put(workspace, node, count, place, workspace.lengths[k], RESPONSE)
        sibling = siblings[sibling]
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
