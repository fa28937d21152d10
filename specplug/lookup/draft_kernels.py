"""Candidates and chains in kernels; `candidates`, `learning` and `plain` say what each function does.

A thread per candidate; what the candidates of a warp agree on is found by comparing all pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup.corpus_kernels import corpus_candidates
from specplug.lookup.kernel_arithmetic import (
    ALIGNED,
    ANCHORS,
    BACK,
    CANDIDATES,
    CHAIN_CONTEXT,
    CHAIN_END,
    CHAIN_EVIDENCE,
    CHAIN_FOR,
    CHAIN_NEXT,
    CHAIN_OWN,
    CHAIN_PARENT,
    CHAIN_ROWS,
    END,
    ENGINE,
    ENGINE_SOURCE,
    ENTRIES,
    FACTS,
    FOLLOWED,
    FORGET,
    GENERATION,
    GROUP,
    HIT_RATE,
    LEAST,
    LENGTHS,
    LEVELS,
    LONG_KEY,
    NEAR,
    OTHER_MATCHES,
    OTHERS_END,
    OWN,
    OWN_ANCHOR,
    OWN_MATCH,
    OWNER,
    PAIRS,
    RESPONSE,
    RESPONSE_ALIGNED,
    RESPONSE_ANCHOR,
    SCOPE,
    SHORT_KEY,
    SHORTEST,
    SHORTEST_KEY,
    SIBLINGS,
    SPAN,
    SPAN_END,
    SPARED,
    START,
    SURE,
    TABLE_CANDIDATES,
    TOKENS_END,
    USED,
    VOTED_FOR,
    WINDOW,
    bucket_of,
    confidence,
    either,
    flags,
    judging_rows,
    kernel,
    larger,
    length_class,
    log_odds,
    log_odds_after,
    origins_of,
    plus,
    probability,
    share_class,
    smaller,
    weight,
)
from specplug.lookup.memory_kernels import ring_match, ring_token


@triton.jit
def candidates(facts, own, memory, best, others, buckets):
    """Return place, length, kind, rank, owner and presence of the candidates, [CANDIDATES], and keep the anchors.

    `best` is the best own match, `others` are the next best ones, [CANDIDATES], where they stand among candidates.
    """
    engine = own[3]
    owner = tl.load(facts + OWNER)
    each = tl.arange(0, CANDIDATES)
    places, lengths, owners, is_entry = entries(facts, own, memory, buckets)
    is_newer = is_entry[None, :] & (owners[None, :] == owners[:, None]) & (places[None, :] > places[:, None])
    ranks = tl.where(is_entry, tl.reduce(is_newer.to(tl.int32), 1, plus), 0)
    is_response = is_entry & (each < TABLE_CANDIDATES)
    most = tl.reduce(tl.where(is_response, (lengths.to(tl.int64) << 32) + places, 0), 0, larger)
    length = (best >> 32).to(tl.int32)
    place = (best & 0xFFFFFFFF).to(tl.int32)
    answered = (most >> 32).to(tl.int32)
    follows = length - engine >= FOLLOWED
    nearby, known = anchor(facts, 0, own, memory, owner, length >= FOLLOWED, follows, place)
    follows = answered - engine >= FOLLOWED
    answer = (most & 0xFFFFFFFF).to(tl.int32)
    distant, reached = anchor(facts, 1, own, memory, owner, answered >= FOLLOWED, follows, answer)
    is_near = (known >= 0) & (nearby - place < WINDOW) & (place - nearby < WINDOW)
    kinds = tl.where(each == OWN_MATCH, tl.where(is_near, NEAR, OWN), RESPONSE)
    kinds = tl.where(each == OWN_ANCHOR, ALIGNED, tl.where(each == RESPONSE_ANCHOR, RESPONSE_ALIGNED, kinds))
    places = tl.where(each == OWN_MATCH, place, tl.where(each == OWN_ANCHOR, nearby, places))
    places = tl.where(each == RESPONSE_ANCHOR, distant, places)
    lengths = tl.where(each == OWN_MATCH, length, tl.where(each == OWN_ANCHOR, known, lengths))
    lengths = tl.where(each == RESPONSE_ANCHOR, reached, lengths)
    is_there = is_entry | ((each == OWN_MATCH) & (length > 0)) | ((each == RESPONSE_ANCHOR) & (reached >= 0))
    is_there = is_there | ((each == OWN_ANCHOR) & (known >= 0) & ((length == 0) | (nearby != place)))
    is_other = others > 0
    places = tl.where(is_other, (others & 0xFFFFFFFF).to(tl.int32), places)
    lengths = tl.where(is_other, (others >> 32).to(tl.int32), lengths)
    kinds = tl.where(is_other, OWN, kinds)
    return places, lengths, kinds, ranks, owners, flags(is_there | is_other)


@triton.jit
def entries(facts, own, memory, buckets):
    """Return the entries of the owner in two buckets, and of the group in one, that match and are no repetitions."""
    text = own[0]
    n = own[1]
    each = tl.arange(0, CANDIDATES)
    quarter = memory[2] // 4
    group = tl.load(facts + GROUP)
    is_sibling = (each >= SIBLINGS) & (each < OTHER_MATCHES)
    owners = tl.where(each >= SIBLINGS, group, tl.load(facts + OWNER))
    is_long = (each < USED) | is_sibling
    long = bucket_of(text, n, owners, quarter, LONG_KEY)
    short = bucket_of(text, n, owners, quarter, SHORT_KEY)
    bucket = tl.where(is_long, long, short)
    key = tl.where(is_long, LONG_KEY, SHORT_KEY)
    number = each - tl.where(is_sibling, SIBLINGS, tl.where(is_long, 0, USED))
    entry = (owners * SPARED + number) & (ENTRIES - 1)
    mask = flags((is_sibling | (each < TABLE_CANDIDATES)) & (owners > 0) & (bucket >= 0))
    places = tl.load(buckets + (bucket + tl.where(is_long, 0, quarter)) * ENTRIES + entry, mask=mask, other=0)
    is_own = is_sibling & (places >= tl.load(facts + SPAN)) & (places < tl.load(facts + SPAN_END))
    mask = mask & (places > 0) & (is_own == 0)
    mask = mask & (ring_token(memory, owners, places, mask) >= 0)
    lengths = ring_match(memory, owners, text, n, places, mask)
    mask = mask & (lengths >= key)
    is_first = each < USED
    if tl.reduce((mask & is_first).to(tl.int32), 0, larger) == 0:
        bucket = bucket_of(text, n, owners, quarter, SHORTEST_KEY)
        is_there = flags(is_first & (owners > 0) & (bucket >= 0))
        found = tl.load(buckets + (bucket + quarter) * ENTRIES + entry, mask=is_there, other=0)
        is_there = is_there & (found > 0)
        is_there = is_there & (ring_token(memory, owners, found, is_there) >= 0)
        reached = ring_match(memory, owners, text, n, found, is_there)
        places = tl.where(is_first, found, places)
        lengths = tl.where(is_first, reached, lengths)
        mask = mask | (is_there & (reached >= SHORTEST_KEY))
    is_same = mask[None, :] & (places[:, None] == places[None, :]) & (each[None, :] < each[:, None])
    return places, lengths, owners, mask & (tl.reduce(is_same.to(tl.int32), 1, larger) == 0)


@triton.jit
def anchor(facts, WHICH: tl.constexpr, own, memory, owner, is_matched, follows, place):
    """Return the anchor's place and length, -1 for no candidate; if the text `follows` a place, that is the anchor."""
    text, n, last, engine = own
    shift = tl.load(facts + ANCHORS + 2 * WHICH)
    followed = tl.load(facts + ANCHORS + 2 * WHICH + 1)
    is_known = (followed > 0) & (followed <= n) & (n - followed < FORGET) & (is_matched == 0)
    order = tl.arange(0, 16)
    offsets = tl.where(order % 2 == 1, (order + 1) // 2, -(order // 2))
    nearby = n + shift + tl.where(order <= 2 * BACK, offsets, order - BACK)
    if WHICH == 0:
        before = tl.load(text + nearby - 1, mask=flags(is_known & (nearby > 0) & (nearby <= n)), other=-1)
        there = tl.load(text + nearby, mask=flags(is_known & (nearby >= 0) & (nearby < n)), other=-1)
    else:
        is_known = is_known & (owner > 0)
        before = ring_token(memory, owner, nearby - 1, is_known)
        there = ring_token(memory, owner, nearby, is_known)
    first = tl.reduce(tl.where((before >= 0) & (before == last) & (there >= 0), order, 16), 0, smaller)
    expected = tl.reduce(tl.where(order == 0, there, -1), 0, larger)
    found = tl.where(first < 16, tl.reduce(tl.where(order == first, nearby, 0), 0, plus), n + shift)
    tl.debug_barrier()
    is_moved = follows | ((first < 16) & (engine == 0))
    tl.store(facts + ANCHORS + 2 * WHICH, tl.where(follows, place, found) - n, mask=is_moved)
    tl.store(facts + ANCHORS + 2 * WHICH + 1, n - engine, mask=follows)
    return found, tl.where(first < 16, 1, tl.where(expected >= 0, 0, -1))


@triton.jit
def gather(facts, own, memory, voted, buckets, matches, blocks, kept, served, figures, vocab_size):
    """Return a row's candidates, of which `kept` are own matches, and note what each predicts next."""
    each = tl.arange(0, CANDIDATES)
    best = next_match(matches, blocks * kept, tl.full([], 1 << 62, tl.int64))
    others = each.to(tl.int64) * 0
    last = best
    index = tl.where(tl.load(facts + GROUP) > 0, OTHER_MATCHES, SIBLINGS) - 1
    for k in range(1, kept):
        last = next_match(matches, blocks * kept, last)
        others = tl.where((each == index + k) & (each < OTHERS_END), last, others)
    found = candidates(facts, own, memory, best, others, buckets)
    found = corpus_candidates(found, facts, own, served)
    places, known, kinds, ranks, owners, alive = found
    alive = flags(alive & (known >= tl.load(figures + SHORTEST)))
    tl.store(voted + each, predicted(own, memory, owners, kinds, places, alive, vocab_size))
    tl.store(voted + CANDIDATES + each, kinds * LENGTHS + length_class(known), mask=alive)
    tl.store(facts + VOTED_FOR, own[1])
    return places, known, kinds, ranks, owners, alive


@triton.jit
def next_match(matches, number, before):
    """Return the best of the matches that are not as good as one."""
    each = tl.arange(0, CANDIDATES)
    best = tl.full([], 0, tl.int64)
    for first in range(0, number, CANDIDATES):
        found = tl.load(matches + first + each, mask=first + each < number, other=0)
        best = larger(best, tl.reduce(tl.where(found < before, found, 0), 0, larger))
    return best


@triton.jit
def predicted(own, memory, owners, kinds, places, mask, vocab_size):
    """Return the token at each candidate's place, -1 for none."""
    origins = origins_of(kinds)
    of_ring = ring_token(memory, owners, places, mask & (origins == 2))
    of_corpora = tl.load(memory[4] + places, mask=flags(mask & (origins == 4)), other=-1)
    tokens = tl.load(own[0] + places, mask=flags(mask & (origins == 1)), other=-1)
    tokens = tl.where(origins == 2, of_ring, tl.where(origins == 4, of_corpora, tokens))
    return tl.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)


@kernel
def draft_kernel(
    slots, generations, limits, texts, texts_stride, facts, chain, voted, counts, chain_length, ring, owners, buckets,
    ring_end, capacity, matches, matches_stride, blocks, kept, figures, scopes, corpus, segments, tenants,
    tenants_count, corpus_matches, ranks_count, engine_tokens, ids, ids_stride, confidences, sources, draft_lengths,
    draft_length, vocab_size, finish, finished, COLUMNS: tl.constexpr, FINISH: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """Draft a chain for a row, and pad; if the step has `FINISH`, do so for one of the rows `finished`, -1 for none."""
    program = tl.program_id(0)
    row = program
    is_row = program >= 0
    if FINISH is not None:
        row = tl.load(finished + program)
        is_row = row >= 0
        row = larger(row, 0)
    columns = tl.arange(0, COLUMNS)
    slot = tl.load(slots + row).to(tl.int64)
    facts = facts + slot * FACTS
    text = texts + slot * texts_stride
    limit = smaller(tl.load(limits + row), draft_length)
    n = tl.load(facts + END)
    engine = tl.load(facts + ENGINE)
    is_current = tl.load(facts + GENERATION) == tl.load(generations + row)
    drafted = n * 0
    tokens = columns * 0
    origins = columns * 0
    levels = columns * 0
    if is_row & is_current & (n > tl.load(facts + START)) & (limit > 0):
        own = (text, n + engine, tl.load(text + n + engine - 1), engine)
        memory = (ring, owners, capacity, tl.load(ring_end), corpus)
        voted = voted + slot * 2 * CANDIDATES
        of_row = matches + row * matches_stride
        served = (scopes + slot * SCOPE, corpus, segments, tenants, tenants_count, corpus_matches, ranks_count, row)
        found = gather(facts, own, memory, voted, buckets, of_row, blocks, kept, served, figures, vocab_size)
        tables = (counts, figures, engine_tokens * (1 + slot))
        chain = chain + slot * CHAIN_ROWS * chain_length
        drafted, tokens, origins, levels = vote(
            facts, chain, chain_length, own, memory, found, limit, tables, vocab_size, columns
        )
    mask = flags((columns < draft_length) & is_row)
    is_drafted = columns < drafted
    tl.store(ids + row * ids_stride + columns, tl.where(is_drafted, tokens, -1), mask=mask)
    rates = tl.where(is_drafted, levels, 0).to(tl.float32) * (1.0 / LEVELS)
    tl.store(confidences + row * ids_stride + columns, rates, mask=mask)
    tl.store(sources + row * ids_stride + columns, tl.where(is_drafted, origins, -1), mask=mask)
    tl.store(draft_lengths + row, drafted, mask=is_row)
    if FINISH is not None:
        tl.debug_barrier()  # it reads what has been stored
        FINISH(finish, program, SIZES)


@triton.jit
def vote(facts, chain, chain_length, own, memory, found, limit, tables, vocab_size, columns):
    """Return the number of drafted tokens, the tokens, their sources and their levels, [COLUMNS]."""
    text, n, last, engine = own
    counts, figures, of_slot = tables
    owner = tl.load(facts + OWNER)
    each = tl.arange(0, CANDIDATES)
    places, known, kinds, ranks, owners, alive = found
    hit_rate = tl.load(facts + HIT_RATE)
    start = tl.load(facts + START)
    origin = origins_of(kinds)
    is_own = alive & (origin == 1)
    period = tl.where(is_own, n - places, 1)
    of_engine = columns < engine
    drafted = engine
    ids = tl.load(text + n - engine + columns, mask=of_engine, other=0)
    sources = tl.where(of_engine, tl.load(figures + ENGINE_SOURCE), 0)
    evidence = tl.where(of_engine, columns + TOKENS_END, 0)
    contexts = tl.where(of_engine, of_slot.to(tl.int32) + columns + TOKENS_END, 0)
    own_rows = tl.where(of_engine, -1, 0)
    for place in range(limit - engine):
        offset = tl.where(is_own, place % period, place)  # own text repeats in its draft
        token = predicted(own, memory, owners, kinds, places + offset, alive, vocab_size)
        alive = alive & (token >= 0)
        rows = kinds * LENGTHS + length_class(known + place)
        voice = weight(figures, log_odds(counts, figures, rows, alive), ranks)
        is_same = alive[None, :] & (token[:, None] == token[None, :])
        scores = tl.reduce(tl.where(is_same, voice[None, :], 0), 1, plus)
        longest = tl.reduce(tl.where(is_same, known[None, :] + place, 0), 1, larger)
        worth = tl.where(alive, scores * (1 + length_class(longest)), -1)
        is_best = alive & (worth == tl.reduce(worth, 0, larger))
        index = tl.reduce(tl.where(is_best, each, CANDIDATES), 0, smaller)
        total = tl.reduce(tl.where(alive, voice, 0), 0, plus)
        chosen = tl.reduce(tl.where(each == index, token, 0), 0, plus)
        score = tl.reduce(tl.where(each == index, scores, 0), 0, plus)
        size = length_class(tl.reduce(tl.where(each == index, longest, 0), 0, plus))
        alive = alive & (token == chosen)
        support = tl.reduce(alive.to(tl.int32), 0, plus)
        own_index = tl.reduce(tl.where(alive & is_own, each, CANDIDATES), 0, smaller)
        own_place = tl.reduce(tl.where(each == own_index, places, 0), 0, plus)
        origins = tl.reduce(tl.where(alive, origin, 0), 0, either)
        near = tl.reduce((alive & (kinds >= NEAR)).to(tl.int32), 0, larger)
        share = share_class(figures, score, total)
        row, context, own_row = judging_rows(chosen, last, owner, size, share, support, hit_rate, origins, near)
        here = flags((columns == place + engine) & (index < CANDIDATES))
        ids = tl.where(here, chosen, ids)
        evidence = tl.where(here, row, evidence)
        contexts = tl.where(here, context, contexts)
        own_rows = tl.where(here, own_row, own_rows)
        source = tl.where(own_index < CANDIDATES, (own_place + place < start).to(tl.int32), 3 - (origins >> 1 & 1))
        sources = tl.where(here, source, sources)
        drafted += (index < CANDIDATES).to(tl.int32)
        last = chosen
    is_drafted = columns < drafted
    levels = confidence(counts, figures, evidence, contexts, own_rows, is_drafted & (own_rows >= 0))
    if engine > 0:
        levels = tl.where(of_engine, engine_levels(counts, figures, evidence, contexts, of_engine), levels)
    survival = tl.full([], SURE, tl.int64)
    least = tl.load(figures + LEAST)
    kept = engine
    for place in range(engine, drafted):
        survival = survival * tl.reduce(tl.where(columns == place, levels, 0), 0, plus) // LEVELS
        kept += (survival >= least).to(tl.int32)
    drafted = kept
    keep(facts, chain, chain_length, n - engine, drafted, (ids, evidence, contexts, own_rows, columns - 1), columns)
    return drafted, ids, sources, levels


@triton.jit
def engine_levels(counts, figures, of_all, own_rows, mask):
    """Return the levels of the engine's tokens being right, by their rows of counts."""
    level = probability(figures, log_odds(counts, figures, of_all, mask))
    return probability(figures, log_odds_after(counts, figures, own_rows, mask, level, PAIRS))


@kernel
def append_kernel(
    slots, generations, limits, texts, texts_stride, capacity, facts, counts, figures, chain_length, engine_ids,
    engine_stride, engine_tokens, confidences, confidences_stride, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Append the engine's draft to a row's text where it is worth more than lookup's own."""
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    slot = tl.load(slots + row).to(tl.int64)
    facts = facts + slot * FACTS
    end = tl.load(facts + END)
    limit = smaller(smaller(engine_tokens, tl.load(limits + row)), smaller(chain_length, capacity - end))
    limit = tl.where(tl.load(facts + GENERATION) == tl.load(generations + row), limit, 0)
    ids = tl.load(engine_ids + row * engine_stride + columns, mask=columns < limit, other=-1).to(tl.int32)
    taken = smaller(tl.reduce(tl.where(ids < 0, columns, COLUMNS), 0, smaller), larger(limit, 0))
    mask = columns < taken
    of_all = columns + TOKENS_END
    levels = engine_levels(counts, figures, of_all, of_all + engine_tokens * (1 + slot), mask)
    rates = tl.load(confidences + row * confidences_stride + columns, mask=mask, other=0.0)
    own_levels = (rates * LEVELS).to(tl.int32)
    own = end * 0 + LEVELS
    engine = own
    gain = end * 0
    for place in range(taken):
        own = own * tl.reduce(tl.where(columns == place, own_levels, 0), 0, plus) // LEVELS
        engine = engine * tl.reduce(tl.where(columns == place, levels, 0), 0, plus) // LEVELS
        gain += engine - own
    is_new = (gain > 0) & (tl.load(facts + CHAIN_NEXT) == 0)
    tl.debug_barrier()
    tl.store(texts + slot * texts_stride + end + columns, ids, mask=flags(mask & (gain > 0)))
    tl.store(facts + ENGINE, taken, mask=gain > 0)
    tl.store(facts + CHAIN_FOR, 0, mask=is_new)


@triton.jit
def keep(facts, chain, chain_length, n, drafted, draft, columns):
    """Let a draft be judged, unless an earlier one still is."""
    ids, evidence, contexts, own_rows, parents = draft
    is_new = tl.load(facts + CHAIN_FOR) != n
    mask = flags((columns < drafted) & is_new)
    tl.debug_barrier()
    tl.store(chain + columns, ids, mask=mask)
    tl.store(chain + CHAIN_EVIDENCE * chain_length + columns, evidence, mask=mask)
    tl.store(chain + CHAIN_CONTEXT * chain_length + columns, contexts, mask=mask)
    tl.store(chain + CHAIN_OWN * chain_length + columns, own_rows, mask=mask)
    tl.store(chain + CHAIN_PARENT * chain_length + columns, parents, mask=mask)
    tl.store(facts + CHAIN_FOR, tl.where(drafted > 0, n, 0), mask=is_new)
    tl.store(facts + CHAIN_NEXT, 0, mask=is_new)
    tl.store(facts + CHAIN_END, drafted, mask=is_new)
