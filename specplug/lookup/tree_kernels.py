"""Trees in kernels, by a thread per candidate: all nodes of the candidates' paths by depth, and then the likeliest.

A candidate knows the figures of the node that its path has reached, and the index of that node's first candidate.
"""

from __future__ import annotations

import triton
import triton.language as tl

from specplug.lookup import counts as of
from specplug.lookup import layout as at
from specplug.lookup.candidate_kernels import gather, predicted_token
from specplug.lookup.draft_kernels import keep
from specplug.lookup.kernel_arithmetic import (
    confidence,
    either,
    flags,
    judging_rows,
    kernel,
    larger,
    length_class,
    log_odds,
    origins_of,
    plus,
    share_class,
    smaller,
    weight,
)


@kernel
def tree_kernel(
    slots, generations, limits, texts, texts_stride, facts, chain, voted, counts, chain_length, ring, owners, buckets,
    ring_end, capacity, matches, matches_stride, blocks, kept, figures, scopes, corpus, segments, tenants,
    tenants_count, corpus_matches, ranks_count, nodes, ids, ids_stride, confidences, sources, draft_lengths, parents,
    draft_length, vocab_size, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Draft a tree for a row, and pad."""
    row = tl.program_id(0)
    columns = tl.arange(0, COLUMNS)
    slot = tl.load(slots + row).to(tl.int64)
    facts = facts + slot * at.FACTS
    text = texts + slot * texts_stride
    limit = smaller(tl.load(limits + row), draft_length)
    n = tl.load(facts + at.END)
    is_current = tl.load(facts + at.GENERATION) == tl.load(generations + row)
    stride = chain_length * at.CANDIDATES
    nodes = nodes + row.to(tl.int64) * at.NODE_ROWS * stride
    drafted = n * 0
    chosen = columns * 0
    before = columns * 0
    if is_current & (n > tl.load(facts + at.START)) & (limit > 0):
        own = (text, n, tl.load(text + n - 1), 0)
        memory = (ring, owners, capacity, tl.load(ring_end), corpus)
        voted = voted + slot * 2 * at.CANDIDATES
        of_row = matches + row * matches_stride
        served = (scopes + slot * at.SCOPE, corpus, segments, tenants, tenants_count, corpus_matches, ranks_count, row)
        candidates = gather(facts, own, memory, voted, buckets, of_row, blocks, kept, served, figures, vocab_size)
        depths = grow(facts, nodes, stride, own, memory, candidates, limit, counts, figures, vocab_size)
        tl.debug_barrier()
        drafted, chosen = choose(nodes, depths, limit, tl.load(figures + at.LEAST), columns)
        is_node = columns < drafted
        tl.store(nodes + at.NODE_NUMBER * stride + chosen, columns, mask=is_node)
        tl.debug_barrier()
        first = tl.load(nodes + at.NODE_PARENT * stride + chosen, mask=is_node, other=0)
        is_deep = is_node & (chosen >= at.CANDIDATES)
        above = (chosen // at.CANDIDATES - 1) * at.CANDIDATES + first
        before = tl.load(nodes + at.NODE_NUMBER * stride + above, mask=is_deep, other=-1)
        tokens = tl.load(nodes + at.NODE_TOKEN * stride + chosen, mask=is_node, other=0)
        evidence = tl.load(nodes + at.NODE_EVIDENCE * stride + chosen, mask=is_node, other=0)
        contexts = tl.load(nodes + at.NODE_CONTEXT * stride + chosen, mask=is_node, other=0)
        own_rows = tl.load(nodes + at.NODE_OWN * stride + chosen, mask=is_node, other=0)
        chain = chain + slot * at.CHAIN_ROWS * chain_length
        keep(facts, chain, chain_length, n, drafted, (tokens, evidence, contexts, own_rows, before), columns)
    mask = columns < draft_length
    is_node = columns < drafted
    tokens = tl.load(nodes + at.NODE_TOKEN * stride + chosen, mask=is_node, other=-1)
    tl.store(ids + row * ids_stride + columns, tokens, mask=mask)
    levels = tl.load(nodes + at.NODE_LEVEL * stride + chosen, mask=is_node, other=0)
    tl.store(confidences + row * ids_stride + columns, levels.to(tl.float32) * (1.0 / at.LEVELS), mask=mask)
    origins = tl.load(nodes + at.NODE_SOURCE * stride + chosen, mask=is_node, other=-1)
    tl.store(sources + row * ids_stride + columns, origins, mask=mask)
    tl.store(parents + row * ids_stride + columns, tl.where(is_node, before, -1), mask=mask)
    tl.store(draft_lengths + row, drafted)


@triton.jit
def grow(facts, nodes, stride, own, memory, candidates, limit, counts, figures, vocab_size):
    """Write the nodes of each depth, and return the number of depths."""
    n = own[1]
    owner = tl.load(facts + at.OWNER)
    hit_rate = tl.load(facts + at.HIT_RATE)
    start = tl.load(facts + at.START)
    each = tl.arange(0, at.CANDIDATES)
    places, known, kinds, ranks, owners, alive = candidates
    origin = origins_of(kinds)
    is_own = alive & (origin == 1)
    period = tl.where(is_own, n - places, 1)
    last = each * 0 + own[2]
    parents = each * 0
    least = tl.load(figures + at.LEAST)
    survival = each.to(tl.int64) * 0 + at.SURE
    depth = n * 0
    while (depth < limit) & (tl.reduce(alive.to(tl.int32), 0, larger) > 0):
        offset = tl.where(is_own, depth % period, depth)
        token = predicted_token(own, memory, owners, kinds, places + offset, alive, vocab_size)
        alive = alive & (token >= 0)
        rows = kinds * of.LENGTHS + length_class(known + depth)
        voice = tl.where(alive, weight(figures, log_odds(counts, figures, rows, alive), ranks), 0)
        is_near = alive[None, :] & (parents[:, None] == parents[None, :])
        total = tl.reduce(tl.where(is_near, voice[None, :], 0), 1, plus)
        is_same = is_near & (token[:, None] == token[None, :])
        score = tl.reduce(tl.where(is_same, voice[None, :], 0), 1, plus)
        longest = tl.reduce(tl.where(is_same, known[None, :] + depth, 0), 1, larger)
        support = tl.reduce(is_same.to(tl.int32), 1, plus)
        first = tl.reduce(tl.where(is_same, each[None, :], at.CANDIDATES), 1, smaller)
        own_first = tl.reduce(tl.where(is_same & is_own[None, :], each[None, :], at.CANDIDATES), 1, smaller)
        own_place = tl.reduce(tl.where(each[None, :] == own_first[:, None], places[None, :], 0), 1, plus)
        origins = tl.reduce(tl.where(is_same, origin[None, :], 0), 1, either)
        near = tl.reduce((is_same & (kinds >= at.NEAR)[None, :]).to(tl.int32), 1, larger)
        share = share_class(figures, score, total)
        size = length_class(longest)
        row, context, own_row = judging_rows(token, last, owner, size, share, support, hit_rate, origins, near)
        level = confidence(counts, figures, row, context, own_row, alive)
        survival = survival * level // at.LEVELS
        here = nodes + depth * at.CANDIDATES + each
        is_node = flags(alive & (first == each))
        tl.store(here + at.NODE_SURVIVAL * stride, tl.where(is_node, survival, 0).to(tl.int32))
        tl.store(here + at.NODE_TOKEN * stride, token, mask=is_node)
        tl.store(here + at.NODE_LEVEL * stride, level, mask=is_node)
        source = tl.where((origins & 1) > 0, (own_place + depth < start).to(tl.int32), 3 - (origins >> 1 & 1))
        tl.store(here + at.NODE_SOURCE * stride, source, mask=is_node)
        tl.store(here + at.NODE_EVIDENCE * stride, row, mask=is_node)
        tl.store(here + at.NODE_CONTEXT * stride, context, mask=is_node)
        tl.store(here + at.NODE_OWN * stride, own_row, mask=is_node)
        tl.store(here + at.NODE_PARENT * stride, parents, mask=is_node)
        alive = alive & (survival >= least)  # no node after another one can be chosen
        parents = first
        last = token
        depth += 1
    return depth


@triton.jit
def choose(nodes, depths, limit, least, columns):
    """Return the number of nodes that are drafted, and the index of each by depth and first candidate, [COLUMNS]."""
    COLUMNS: tl.constexpr = columns.shape[0]
    each = tl.arange(0, COLUMNS * at.CANDIDATES)
    survival = tl.load(nodes + at.NODE_SURVIVAL + each, mask=each < depths * at.CANDIDATES, other=0)
    order = (survival.to(tl.int64) << 32) - each
    chosen = columns * 0
    drafted = depths * 0
    best = tl.reduce(order, 0, larger)
    while (drafted < limit) & ((best + COLUMNS * at.CANDIDATES) >> 32 >= least):
        index = (-best & 0xFFFFFFFF).to(tl.int32)
        chosen = tl.where(columns == drafted, index, chosen)
        drafted += 1
        order = tl.where(each == index, -1 - each, order)
        best = tl.reduce(order, 0, larger)
    return drafted, chosen
