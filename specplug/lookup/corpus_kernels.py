"""The search of corpora for GPUs, in Triton; `corpus_search` is the reference and says what each function does.

`search` runs a program per row and segment of its tenant; `find_corpus_candidates` is a part of the kernels that draft.
Instead of halving, each turn of the search compares as many places as a program has cursors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import corpus_search
from specplug.lookup import layout as at
from specplug.lookup.kernel_arithmetic import flags, kernel, larger, plus, smaller

TEXT, LENGTH, PLACES, COUNT, DOCUMENTS, NUMBER = map(tl.constexpr, range(6))
SEGMENT_FACTS, LOOKED_AT, COPIES = map(tl.constexpr, (at.SEGMENT_FACTS, corpus_search.LOOKED_AT, corpus_search.COPIES))
CORPUS_CANDIDATES, MAX_NAMED = map(tl.constexpr, (at.CORPUS_CANDIDATES, at.MAX_NAMED))
CURSORS = tl.constexpr(2 * corpus_search.LOOKED_AT)
NEARBY = tl.constexpr(128)
"""Tokens around an anchor's last place among which it may be now."""


@kernel
def search_kernel(
    slots, generations, limits, texts, texts_stride, facts, scopes, corpus, segments, tenants, tenants_count, documents,
    corpus_matches, ranks_count,
):  # fmt: skip
    """Write the best matches of a row's text in a segment of its tenant."""
    row = tl.program_id(0)
    rank = tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    facts = facts + slot * at.FACTS
    n = tl.load(facts + at.END)
    scope = scopes + slot * at.SCOPE
    tenant = tl.load(scope + at.TENANT)
    is_current = tl.load(facts + at.GENERATION) == tl.load(generations + row)
    is_served = is_current & (tl.load(limits + row) > 0) & (n > 0) & (tenant > 0) & (tenant < tenants_count - 1)
    segment = tl.load(tenants + tenant, mask=is_served, other=0) + rank
    stop = tl.load(tenants + tenant + 1, mask=is_served, other=0)
    each = tl.arange(0, CORPUS_CANDIDATES)
    best = tl.full([CORPUS_CANDIDATES], 0, tl.int64)
    if segment < stop:
        about = segments + segment * SEGMENT_FACTS
        own = (texts + slot * texts_stride, n + tl.load(facts + at.ENGINE))
        best = find_places(about, scope, corpus, documents, own, each)
    tl.store(corpus_matches + (row * ranks_count + rank) * CORPUS_CANDIDATES + each, best)


@triton.jit
def find_places(about, scope, corpus, documents, own, each):
    text = corpus + tl.load(about + TEXT)
    length = tl.load(about + LENGTH).to(tl.int32)
    places = corpus + tl.load(about + PLACES)
    count = tl.load(about + COUNT).to(tl.int32)
    cursors = tl.arange(0, CURSORS)
    low = count * 0
    high = count
    while low < high:
        span = high - low
        pivots = low + tl.where(
            span <= CURSORS, cursors, (span.to(tl.int64) * (cursors + 1) // (CURSORS + 1)).to(tl.int32)
        )
        mask = cursors < span
        place = place_at(places, pivots, mask, length)
        _, below = compare_places(text, place, own, mask)
        number = tl.reduce(flags(below & mask).to(tl.int32), 0, plus)
        reached = tl.reduce(tl.where(cursors == number - 1, pivots + 1, 0), 0, larger)
        over = tl.reduce(tl.where(cursors == number, pivots, 0), 0, larger)
        high = tl.where(number < smaller(span, CURSORS), over, high)
        low = tl.where(number > 0, reached, low)
    index = low + tl.where(cursors < LOOKED_AT, -1 - cursors, cursors - LOOKED_AT)
    mask = (index >= 0) & (index < count)
    place = place_at(places, index, mask, length)
    matched, _ = compare_places(text, place, own, mask)
    mask = flags(mask & (matched > 0))
    named = is_named(about, scope, documents, place, mask)
    worth = tl.where(mask, ((2 * matched + named) << 16) + 65535 - cursors, 0)
    best = tl.full([CORPUS_CANDIDATES], 0, tl.int64)
    for k in tl.static_range(CORPUS_CANDIDATES):
        first = tl.reduce(worth, 0, larger)
        chosen = tl.reduce(tl.where(worth == first, place, 0), 0, larger)
        packed = ((first >> 16).to(tl.int64) << 32) + chosen
        best = tl.where((each == k) & (first > 0), packed, best)
        worth = tl.where(worth == first, 0, worth)
    return best


@triton.jit
def place_at(places, index, mask, length):
    place = tl.load(places + index, mask=mask, other=1)
    return smaller(larger(place, 1), length - 1)


@triton.jit
def compare_places(text, places, own, mask):
    """Return how many tokens before each place match the text's end, and which places come before it."""
    own_text, n = own
    columns = tl.arange(0, 16)
    found = places * 0
    below = places < 0
    for first in range(0, at.LONGEST, 16):
        if tl.reduce(mask.to(tl.int32), 0, larger) > 0:
            distance = first + 1 + columns
            wanted = larger(tl.load(own_text + n - distance, mask=n >= distance, other=-1), -1)
            inside = flags(mask[:, None] & (places[:, None] >= distance[None, :]))
            tokens = larger(tl.load(text + places[:, None] - distance[None, :], mask=inside, other=-1), -1)
            is_end = (tokens != wanted[None, :]) | (tokens < 0)
            equal = tl.reduce(tl.where(is_end, columns[None, :], 16), 1, smaller)
            is_first = columns[None, :] == equal[:, None]
            is_below = tl.reduce((is_first & (tokens < wanted[None, :])).to(tl.int32), 1, larger)
            below = tl.where(mask, is_below > 0, below)
            found += tl.where(mask, equal, 0)
            mask = flags(mask & (equal == 16))
    return found, below


@triton.jit
def is_named(about, scope, documents, places, mask):
    named = places * 0
    if tl.load(scope + at.NAMED_CORPORA) > 0:
        low = places * 0
        high = low + tl.load(about + NUMBER).to(tl.int32)
        rows = documents + 2 * tl.load(about + DOCUMENTS)
        while tl.reduce(high - low, 0, larger) > 1:
            middle = (low + high) // 2
            is_there = tl.load(rows + 2 * middle, mask=mask, other=0) < places
            is_open = high - low > 1
            low = tl.where(is_open & is_there, middle, low)
            high = tl.where(is_open & (is_there == 0), middle, high)
        corpus = tl.load(rows + 2 * low + 1, mask=mask, other=0)
        for k in tl.static_range(MAX_NAMED):
            named = larger(named, (corpus == tl.load(scope + at.NAMED_CORPORA + k)).to(tl.int32))
    return named


@triton.jit
def find_corpus_candidates(candidates, facts, own, served):
    """Return the candidates with those of corpora, and keep the anchor."""
    places, lengths, kinds, ranks, owners, is_there = candidates
    scope, corpus, segments, tenants, tenants_count, corpus_matches, ranks_count, row = served
    matches = corpus_matches + row * ranks_count * CORPUS_CANDIDATES
    each = tl.arange(0, at.CANDIDATES)
    n = own[1]
    engine = own[3]
    tenant = tl.load(scope + at.TENANT)
    is_served = (tenant > 0) & (tenant < tenants_count - 1)
    first_segment = tl.load(tenants + tenant, mask=is_served, other=0)
    number = tl.where(is_served, ranks_count * CORPUS_CANDIDATES, 0)
    before = n * 0 + (1 << 30)
    best_place = n * 0
    best_segment = n * 0
    best_length = n * 0
    for k in tl.static_range(CORPUS_CANDIDATES):
        best = n * 0
        for first in range(0, number, at.CANDIDATES):
            entry = first + each
            match = tl.load(matches + entry, mask=entry < number, other=0)
            worth = tl.where(match > 0, ((match >> 32) << 16).to(tl.int32) + 65535 - entry, 0)
            best = larger(best, tl.reduce(tl.where(worth < before, worth, 0), 0, larger))
        index = 65535 - (best & 65535)
        place = (tl.load(matches + index, mask=best > 0, other=0) & 0xFFFFFFFF).to(tl.int32)
        segment = first_segment + index // CORPUS_CANDIDATES
        begin = tl.load(segments + segment * SEGMENT_FACTS + TEXT, mask=best > 0, other=0).to(tl.int32)
        here = flags((each == at.CORPUS_MATCH + k) & (best > 0))
        places = tl.where(here, begin + place, places)
        lengths = tl.where(here, best >> 17, lengths)
        kinds = tl.where(here, at.CORPUS + (best >> 16 & 1), kinds)
        ranks = tl.where(here, COPIES * k, ranks)
        is_there = is_there | here
        before = best
        if k == 0:
            best_place = place
            best_segment = segment
            best_length = best >> 17
    follows = best_length - engine >= at.FOLLOWED
    is_free = is_served & (best_length < at.FOLLOWED)
    anchored, known = corpus_anchor(facts, own, corpus, segments, is_free)
    of_corpora = is_there & (each >= at.CORPUS_MATCH) & (each < at.CORPUS_ANCHOR)
    is_new = tl.reduce(flags(of_corpora & (places == anchored)).to(tl.int32), 0, larger) == 0
    here = flags((each == at.CORPUS_ANCHOR) & (known >= 0) & is_new)
    tl.debug_barrier()
    tl.store(facts + at.SEGMENT, best_segment, mask=follows)
    tl.store(facts + at.SEGMENT_PLACE, best_place - engine, mask=follows)
    tl.store(facts + at.PLACE_AT, n - engine, mask=follows)
    tl.store(facts + at.FOLLOWED_AT, n - engine, mask=follows)
    places = tl.where(here, anchored, places)
    lengths = tl.where(here, known, lengths)
    kinds = tl.where(each == at.CORPUS_ANCHOR, at.CORPUS_ALIGNED, kinds)
    return places, lengths, kinds, ranks, owners, flags(is_there | here)


@triton.jit
def corpus_anchor(facts, own, corpus, segments, is_free):
    """Return the anchor's place in `corpus` and its length, -1 for no candidate."""
    _, n, last, engine = own
    known_place = tl.load(facts + at.SEGMENT_PLACE)
    known_at = tl.load(facts + at.PLACE_AT)
    followed = tl.load(facts + at.FOLLOWED_AT)
    is_known = is_free & (followed > 0) & (n >= known_at) & (n - followed < at.FORGET)
    about = segments + tl.load(facts + at.SEGMENT) * SEGMENT_FACTS
    begin = tl.load(about + TEXT, mask=is_known, other=0)
    length = tl.load(about + LENGTH, mask=is_known, other=0).to(tl.int32)
    text = corpus + begin
    nearby = known_place - at.BACK + tl.arange(0, NEARBY)
    mask = flags(is_known & (nearby >= 0) & (nearby < length))
    is_end = tl.load(text + nearby, mask=mask, other=-1) < 0
    low = tl.reduce(tl.where(is_end & (nearby < known_place), nearby, -1), 0, larger)
    high = tl.reduce(tl.where(is_end & (nearby >= known_place), nearby, length), 0, smaller)
    is_known = is_known & (high > known_place)
    order = tl.arange(0, 16)
    offsets = tl.where(order % 2 == 1, (order + 1) // 2, -(order // 2))
    expected = known_place + n - known_at
    place = expected + tl.where(order <= 2 * at.BACK, offsets, order - at.BACK)
    is_followed = flags(is_known & (place > larger(low, 0)) & (place < high))
    token = tl.load(text + place - 1, mask=is_followed, other=-1)
    first = tl.reduce(tl.where((token >= 0) & (token == last), order, 16), 0, smaller)
    has_expected = tl.reduce(tl.where((order == 0) & is_followed, 1, 0), 0, larger)
    found = tl.where(first < 16, tl.reduce(tl.where(order == first, place, -NEARBY), 0, larger), expected)
    tl.debug_barrier()
    is_moved = (first < 16) & (engine == 0)
    tl.store(facts + at.SEGMENT_PLACE, found, mask=is_moved)
    tl.store(facts + at.PLACE_AT, n, mask=is_moved)
    return found + begin.to(tl.int32), tl.where(first < 16, 1, has_expected - 1)
