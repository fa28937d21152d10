"""Search of the corpus index: the places in a tenant's segments that match a context best, by binary search in each.

For a batch, the searches are interleaved: while one waits for memory, the others compare.  A search in a large segment
takes two dozen steps, each of which misses the cache twice: for the place in the middle, and for the text before it.
tests/match/reference/corpus_index.py is the plain reference.
"""

from __future__ import annotations

from typing import Any

from numba import carray  # type: ignore[attr-defined]

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.corpus_index import TOKEN
from specplug.match.cpu.intrinsics import int32_at, int64_at, prefetch, uint8_at
from specplug.match.cpu.texts import MOST_CANDIDATES

MOST_LOOKED_AT = 4 * MOST_CANDIDATES
"""The most places of a segment that are examined; they exceed the candidates for the sake of removed documents."""


@compiled
def token_after(place: int) -> int:
    """Return the token at a place of the corpus index, negative if it is not text."""
    return carray(int32_at(place * TOKEN), 1)[0]  # type: ignore[no-any-return]


@compiled
def common(place: int, context: Any, end: int, cap: int) -> int:
    """Return how many tokens before a place equal those before `end` of `context`, at most `cap`.

    It never reads past the beginning of the place's text: NO_TEXT is there, which never equals a token of the context.
    """
    n, most = 0, min(end, cap)
    while n < most and context[end - 1 - n] >= 0 and token_after(place - 1 - n) == context[end - 1 - n]:
        n += 1
    return n


@compiled
def insertion_point(corpus_index: Any, segment: int, context: Any, end: int, cap: int) -> int:
    """Return how many places of a segment have a key below that of the context, the text before `end` of [E] int32."""
    low, high, shared_low, shared_high = 0, corpus_index.counts[segment], 0, 0
    while low < high:
        low, high, shared_low, shared_high = halved(
            corpus_index, segment, context, end, cap, low, high, shared_low, shared_high
        )
    return low


@compiled
def halved(
    corpus_index: Any,
    segment: int,
    context: Any,
    end: int,
    cap: int,
    low: int,
    high: int,
    shared_low: int,
    shared_high: int,
) -> tuple[int, int, int, int]:
    """Halve the interval from `low` to `high` that contains an insertion point.

    The places just below `low` and at `high` share `shared_low` and `shared_high` tokens with the context.  All places
    in between share at least the smaller number, which needs no comparison (Manber and Myers).

    Returns:
        the four new values.
    """
    middle = (low + high) // 2
    within = place_at(corpus_index, segment, middle)
    place = corpus_index.texts[segment] + within
    n = min(shared_low, shared_high, within - 1)  # damaged places may share less; never read before the text
    a, b = 0, 0
    while n < cap:
        a, b = max(token_after(place - 1 - n), -1), (max(context[end - 1 - n], -1) if n < end else -1)
        if a != b or a < 0:
            break
        n += 1
    if n < cap and a < b:
        return middle + 1, high, n, shared_high
    return low, middle, shared_low, n


@compiled
def nearest(corpus_index: Any, tenant: int, named: Any, points: Any, context: Any, end: int, cap: int) -> int:
    """Write the best-matching places of a tenant's segments to the corpus index's own workspace.

    Among ties, places of named corpora come first, then those of earlier segments.

    Args:
        tenant: its number; 0 has no segments.
        named: [N] int32, the corpora that the request names, 0 for none.
        points: [P] int64, the insertion points in the first P segments, -1 if unknown.
        context: [E] int32; the context is the text before `end`, read backwards, at most `cap` tokens.

    Returns:
        their number, at most `MOST_CANDIDATES`; they are in `corpus_index.found`, `matches` (tokens), `named` (0 or 1).
    """
    count = 0
    if tenant <= 0 or tenant + 1 >= corpus_index.first.size or end == 0 or context[end - 1] < 0:
        return count
    for segment in range(corpus_index.first[tenant], corpus_index.first[tenant + 1]):
        rank = segment - corpus_index.first[tenant]
        right = points[rank] if rank < points.size else -1
        if right < 0:
            right = insertion_point(corpus_index, segment, context, end, cap)
        left, looked_at = right - 1, 0
        n_left, n_right = (
            _match(corpus_index, segment, left, context, end, cap),
            _match(corpus_index, segment, right, context, end, cap),
        )
        while looked_at < MOST_LOOKED_AT and (n_left > 0 or n_right > 0):
            looked_at += 1
            if n_left >= n_right:
                at, n, left = left, n_left, left - 1
                n_left = _match(corpus_index, segment, left, context, end, cap)
            else:
                at, n, right = right, n_right, right + 1
                n_right = _match(corpus_index, segment, right, context, end, cap)
            if count == MOST_CANDIDATES and n < corpus_index.matches[count - 1]:
                break
            place = place_at(corpus_index, segment, at)
            is_named = _named_if_live(corpus_index, segment, place, named)
            if is_named >= 0:
                count = _enter(corpus_index, count, corpus_index.texts[segment] + place, n, is_named, segment)
    return count


@compiled
def place_at(corpus_index: Any, segment: int, at: int) -> int:
    """Return the place that is `at`-th by key in a segment's text."""
    return _inside(
        carray(int32_at(corpus_index.places[segment]), corpus_index.counts[segment])[at], corpus_index.lengths[segment]
    )


@compiled
def _inside(place: int, length: int) -> int:
    return min(max(place, 1), length - 1)


@compiled
def _match(corpus_index: Any, segment: int, at: int, context: Any, end: int, cap: int) -> int:
    """Return how many tokens match before the place that is `at`-th by key in a segment; 0 if there is none."""
    if at < 0 or at >= corpus_index.counts[segment]:
        return 0
    return common(corpus_index.texts[segment] + place_at(corpus_index, segment, at), context, end, cap)


@compiled
def _named_if_live(corpus_index: Any, segment: int, place: int, named: Any) -> int:
    """Return 1 for a place of a named corpus, 0 for one of another corpus, -1 if its document is dead."""
    if corpus_index.dead[segment] == 0 and named[0] == 0:
        return 0
    document = document_at(corpus_index, segment, place)
    if (
        corpus_index.dead[segment] != 0
        and carray(uint8_at(corpus_index.dead[segment]), corpus_index.documents[segment])[document]
    ):
        return -1
    own = carray(int32_at(corpus_index.corpus_of[segment]), corpus_index.documents[segment])[document]
    number = corpus_index.numbers[min(max(corpus_index.first_number[segment] + own, 0), corpus_index.numbers.size - 1)]
    for k in range(named.size):
        if named[k] == number:
            return 1
    return 0


@compiled
def document_at(corpus_index: Any, segment: int, place: int) -> int:
    """Return the document that contains the token before a place of a segment."""
    starts = carray(int64_at(corpus_index.starts[segment]), corpus_index.documents[segment] + 1)
    low, high = 0, corpus_index.documents[segment]
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= place - 1:
            low = middle
        else:
            high = middle
    return low


@compiled
def _enter(corpus_index: Any, count: int, place: int, n: int, is_named: int, segment: int) -> int:
    """Insert a candidate after those that are as good; if there are too many, drop the last."""
    at = count
    while at > 0 and (
        n > corpus_index.matches[at - 1]
        or (n == corpus_index.matches[at - 1] and is_named > corpus_index.named[at - 1])
    ):
        at -= 1
    if at == MOST_CANDIDATES:
        return count
    for k in range(min(count, MOST_CANDIDATES - 1), at, -1):
        corpus_index.found[k], corpus_index.matches[k] = corpus_index.found[k - 1], corpus_index.matches[k - 1]
        corpus_index.named[k], corpus_index.segments[k] = corpus_index.named[k - 1], corpus_index.segments[k - 1]
    corpus_index.found[at], corpus_index.matches[at], corpus_index.named[at], corpus_index.segments[at] = (
        place,
        n,
        is_named,
        segment,
    )
    return min(count + 1, MOST_CANDIDATES)


@compiled
def find_points(state: Any, slots: Any, limits: Any) -> None:
    """Store the insertion points of the texts in `slots` [B] int64, in the first segments of their tenants.

    Args:
        limits: [B] int32; rows with 0 need no draft.
    """
    texts, rows, corpus_index = state.texts, state.rows, state.corpus_index
    if corpus_index.texts.size == 0:
        return
    for rank in range(rows.points.shape[1]):
        row = 0
        while row < slots.size:
            cursors = 0
            while row < slots.size and cursors < len(corpus_index.cursors):
                slot, tenant = slots[row], rows.tenants[slots[row]]
                rows.points[slot, rank] = -1
                if limits[row] > 0 and 0 < tenant < corpus_index.first.size - 1 and texts.lengths[slot] > 0:
                    segment = corpus_index.first[tenant] + rank
                    if segment < corpus_index.first[tenant + 1]:
                        _start_search(corpus_index, cursors, slot, segment)
                        cursors += 1
                row += 1
            _run_searches(state, cursors)
            for cursor in range(cursors):
                rows.points[corpus_index.cursors[cursor, 0], rank] = corpus_index.cursors[cursor, 2]


@compiled
def _start_search(corpus_index: Any, cursor: int, slot: int, segment: int) -> None:
    cursors = corpus_index.cursors
    cursors[cursor, 0], cursors[cursor, 1], cursors[cursor, 2], cursors[cursor, 3] = (
        slot,
        segment,
        0,
        corpus_index.counts[segment],
    )
    cursors[cursor, 4] = cursors[cursor, 5] = 0


@compiled
def _run_searches(state: Any, count: int) -> None:
    """Run all searches to their ends, one step of each in turn."""
    texts, corpus_index = state.texts, state.corpus_index
    cursors, num_running = corpus_index.cursors, count
    while num_running:
        for cursor in range(count):
            low, high = cursors[cursor, 2], cursors[cursor, 3]
            if low < high:  # the previous turn prefetched the place
                segment = cursors[cursor, 1]
                text = carray(int32_at(corpus_index.texts[segment] * TOKEN), corpus_index.lengths[segment])
                prefetch(
                    text,
                    place_at(corpus_index, segment, (low + high) // 2)
                    - 1
                    - min(cursors[cursor, 4], cursors[cursor, 5]),
                )
        num_running = 0
        for cursor in range(count):
            low, high = cursors[cursor, 2], cursors[cursor, 3]
            if low < high:
                slot, segment = cursors[cursor, 0], cursors[cursor, 1]
                context, end = texts.text[slot], texts.lengths[slot]
                low, high, below, above = halved(
                    corpus_index, segment, context, end, state.max_n, low, high, cursors[cursor, 4], cursors[cursor, 5]
                )
                cursors[cursor, 2], cursors[cursor, 3], cursors[cursor, 4], cursors[cursor, 5] = low, high, below, above
                num_running += low < high
                prefetch(
                    carray(int32_at(corpus_index.places[segment]), corpus_index.counts[segment]), (low + high) // 2
                )
