"""Drafting of chains in kernels; `learning` and `plain` say what each function does.

A thread per candidate; what the candidates of a warp agree on is found by comparing all pairs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at
from specplug.lookup.candidate_kernels import gather, predicted_token
from specplug.lookup.kernel_arithmetic import (
    PAIRS,
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
    facts = facts + slot * at.FACTS
    text = texts + slot * texts_stride
    limit = smaller(tl.load(limits + row), draft_length)
    n = tl.load(facts + at.END)
    engine = tl.load(facts + at.ENGINE)
    is_current = tl.load(facts + at.GENERATION) == tl.load(generations + row)
    drafted = n * 0
    tokens = columns * 0
    origins = columns * 0
    levels = columns * 0
    if is_row & is_current & (n > tl.load(facts + at.START)) & (limit > 0):
        own = (text, n + engine, tl.load(text + n + engine - 1), engine)
        memory = (ring, owners, capacity, tl.load(ring_end), corpus)
        voted = voted + slot * 2 * at.CANDIDATES
        of_row = matches + row * matches_stride
        served = (scopes + slot * at.SCOPE, corpus, segments, tenants, tenants_count, corpus_matches, ranks_count, row)
        candidates = gather(facts, own, memory, voted, buckets, of_row, blocks, kept, served, figures, vocab_size)
        tables = (counts, figures, engine_tokens * (1 + slot))
        chain = chain + slot * at.CHAIN_ROWS * chain_length
        drafted, tokens, origins, levels = vote(
            facts, chain, chain_length, own, memory, candidates, limit, tables, vocab_size, columns
        )
    mask = flags((columns < draft_length) & is_row)
    is_drafted = columns < drafted
    tl.store(ids + row * ids_stride + columns, tl.where(is_drafted, tokens, -1), mask=mask)
    rates = tl.where(is_drafted, levels, 0).to(tl.float32) * (1.0 / at.LEVELS)
    tl.store(confidences + row * ids_stride + columns, rates, mask=mask)
    tl.store(sources + row * ids_stride + columns, tl.where(is_drafted, origins, -1), mask=mask)
    tl.store(draft_lengths + row, drafted, mask=is_row)
    if FINISH is not None:
        tl.debug_barrier()  # it reads what has been stored
        FINISH(finish, program, SIZES)


@triton.jit
def vote(facts, chain, chain_length, own, memory, candidates, limit, tables, vocab_size, columns):
    """Return the number of drafted tokens, the tokens, their sources and their levels, [COLUMNS]."""
    text, n, last, engine = own
    counts, figures, of_slot = tables
    owner = tl.load(facts + at.OWNER)
    each = tl.arange(0, at.CANDIDATES)
    places, known, kinds, ranks, owners, alive = candidates
    hit_rate = tl.load(facts + at.HIT_RATE)
    start = tl.load(facts + at.START)
    origin = origins_of(kinds)
    is_own = alive & (origin == 1)
    period = tl.where(is_own, n - places, 1)
    of_engine = columns < engine
    drafted = engine
    ids = tl.load(text + n - engine + columns, mask=of_engine, other=0)
    sources = tl.where(of_engine, tl.load(figures + at.ENGINE_SOURCE), 0)
    evidence = tl.where(of_engine, columns + of.TOKENS_END, 0)
    contexts = tl.where(of_engine, of_slot.to(tl.int32) + columns + of.TOKENS_END, 0)
    own_rows = tl.where(of_engine, -1, 0)
    for place in range(limit - engine):
        offset = tl.where(is_own, place % period, place)  # own text repeats in its draft
        token = predicted_token(own, memory, owners, kinds, places + offset, alive, vocab_size)
        alive = alive & (token >= 0)
        rows = kinds * of.LENGTHS + length_class(known + place)
        voice = weight(figures, log_odds(counts, figures, rows, alive), ranks)
        is_same = alive[None, :] & (token[:, None] == token[None, :])
        scores = tl.reduce(tl.where(is_same, voice[None, :], 0), 1, plus)
        longest = tl.reduce(tl.where(is_same, known[None, :] + place, 0), 1, larger)
        worth = tl.where(alive, scores * (1 + length_class(longest)), -1)
        is_best = alive & (worth == tl.reduce(worth, 0, larger))
        index = tl.reduce(tl.where(is_best, each, at.CANDIDATES), 0, smaller)
        total = tl.reduce(tl.where(alive, voice, 0), 0, plus)
        chosen = tl.reduce(tl.where(each == index, token, 0), 0, plus)
        score = tl.reduce(tl.where(each == index, scores, 0), 0, plus)
        size = length_class(tl.reduce(tl.where(each == index, longest, 0), 0, plus))
        alive = alive & (token == chosen)
        support = tl.reduce(alive.to(tl.int32), 0, plus)
        own_index = tl.reduce(tl.where(alive & is_own, each, at.CANDIDATES), 0, smaller)
        own_place = tl.reduce(tl.where(each == own_index, places, 0), 0, plus)
        origins = tl.reduce(tl.where(alive, origin, 0), 0, either)
        near = tl.reduce((alive & (kinds >= at.NEAR)).to(tl.int32), 0, larger)
        share = share_class(figures, score, total)
        row, context, own_row = judging_rows(chosen, last, owner, size, share, support, hit_rate, origins, near)
        here = flags((columns == place + engine) & (index < at.CANDIDATES))
        ids = tl.where(here, chosen, ids)
        evidence = tl.where(here, row, evidence)
        contexts = tl.where(here, context, contexts)
        own_rows = tl.where(here, own_row, own_rows)
        source = tl.where(own_index < at.CANDIDATES, (own_place + place < start).to(tl.int32), 3 - (origins >> 1 & 1))
        sources = tl.where(here, source, sources)
        drafted += (index < at.CANDIDATES).to(tl.int32)
        last = chosen
    is_drafted = columns < drafted
    levels = confidence(counts, figures, evidence, contexts, own_rows, is_drafted & (own_rows >= 0))
    if engine > 0:
        levels = tl.where(of_engine, engine_levels(counts, figures, evidence, contexts, of_engine), levels)
    survival = tl.full([], at.SURE, tl.int64)
    least = tl.load(figures + at.LEAST)
    kept = engine
    for place in range(engine, drafted):
        survival = survival * tl.reduce(tl.where(columns == place, levels, 0), 0, plus) // at.LEVELS
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
    facts = facts + slot * at.FACTS
    end = tl.load(facts + at.END)
    limit = smaller(smaller(engine_tokens, tl.load(limits + row)), smaller(chain_length, capacity - end))
    limit = tl.where(tl.load(facts + at.GENERATION) == tl.load(generations + row), limit, 0)
    ids = tl.load(engine_ids + row * engine_stride + columns, mask=columns < limit, other=-1).to(tl.int32)
    taken = smaller(tl.reduce(tl.where(ids < 0, columns, COLUMNS), 0, smaller), larger(limit, 0))
    mask = columns < taken
    of_all = columns + of.TOKENS_END
    levels = engine_levels(counts, figures, of_all, of_all + engine_tokens * (1 + slot), mask)
    rates = tl.load(confidences + row * confidences_stride + columns, mask=mask, other=0.0)
    own_levels = (rates * at.LEVELS).to(tl.int32)
    own = end * 0 + at.LEVELS
    engine = own
    gain = end * 0
    for place in range(taken):
        own = own * tl.reduce(tl.where(columns == place, own_levels, 0), 0, plus) // at.LEVELS
        engine = engine * tl.reduce(tl.where(columns == place, levels, 0), 0, plus) // at.LEVELS
        gain += engine - own
    is_new = (gain > 0) & (tl.load(facts + at.CHAIN_NEXT) == 0)
    tl.debug_barrier()
    tl.store(texts + slot * texts_stride + end + columns, ids, mask=flags(mask & (gain > 0)))
    tl.store(facts + at.ENGINE, taken, mask=gain > 0)
    tl.store(facts + at.CHAIN_FOR, 0, mask=is_new)


@triton.jit
def keep(facts, chain, chain_length, n, drafted, draft, columns):
    """Mark a draft for judging, unless an earlier draft is still being judged."""
    ids, evidence, contexts, own_rows, parents = draft
    is_new = tl.load(facts + at.CHAIN_FOR) != n
    mask = flags((columns < drafted) & is_new)
    tl.debug_barrier()
    tl.store(chain + columns, ids, mask=mask)
    tl.store(chain + at.CHAIN_EVIDENCE * chain_length + columns, evidence, mask=mask)
    tl.store(chain + at.CHAIN_CONTEXT * chain_length + columns, contexts, mask=mask)
    tl.store(chain + at.CHAIN_OWN * chain_length + columns, own_rows, mask=mask)
    tl.store(chain + at.CHAIN_PARENT * chain_length + columns, parents, mask=mask)
    tl.store(facts + at.CHAIN_FOR, tl.where(drafted > 0, n, 0), mask=is_new)
    tl.store(facts + at.CHAIN_NEXT, 0, mask=is_new)
    tl.store(facts + at.CHAIN_END, drafted, mask=is_new)
