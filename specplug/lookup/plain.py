"""The reference of the lookup, one row at a time; see `layout` for its memory, of which it takes numpy `views`.

The code of `candidates` and `learning` is shared with the form for CPUs, which compiles it as it is.
"""

from __future__ import annotations

import heapq
from typing import Any

from specplug.lookup import arithmetic
from specplug.lookup import layout as at
from specplug.lookup.candidates import find_candidates, keep_long_enough, origin_of, owner_of, predicted_token
from specplug.lookup.corpus_search import find_corpus_candidates
from specplug.lookup.corpus_search import search as search
from specplug.lookup.layout import INDEX, KIND, PLACE, TOKEN, WEIGHT, Drafts, Rows, Source, State
from specplug.lookup.learning import ask, begin_draft, confidence, end_draft, engine_level, learn


def ingest(state: State, texts: Any, rows: Rows, source: Source, learns: bool) -> None:
    """Copy each row's new tokens to its text, and learn from them; `scan` comes next.

    A text is cut where tokens were withdrawn or replaced, and tokens that were skipped become negative.  A text that
    does not fit has only its references.  Without `learns`, another call without new tokens has to learn.
    """
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        facts = state.slots[slot]
        if facts[at.GENERATION] == rows.generations[row]:
            text = texts[slot]
            start = int(facts[at.START])
            known = int(facts[at.END])
            has_room = start + rows.lengths[row] <= text.size
            end = start + int(rows.lengths[row]) if has_room else start
            begin = end - int(source.num_new[row]) if has_room else start
            shift = start + int(source.firsts[row])
            line = source.table[source.rows[row]]
            if begin != known:
                facts[at.VOTED_FOR] = facts[at.CHAIN_FOR] = 0
            for k in range(begin, min(begin + facts[at.ENGINE], end)):
                if text[k] != line[k - shift]:
                    facts[at.VOTED_FOR] = 0  # the votes were for another text
                    break
            if begin < known:
                facts[at.ANCHORS :] = 0
                facts[at.WRITTEN] = min(facts[at.WRITTEN], begin)
            for k in range(known, begin):
                text[k] = -1
            for k in range(begin, end):
                text[k] = line[k - shift]
            facts[at.END] = end
            facts[at.ENGINE] = 0
            if learns:
                learn(state, slot, text, end)


def scan(state: State, texts: Any, rows: Rows) -> None:
    """Write each row's best matches to `matches`."""
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        facts = state.slots[slot]
        state.matches[row, :] = 0
        if facts[at.GENERATION] == rows.generations[row]:
            n = int(facts[at.END])
            if rows.limits[row] > 0 and n > 0:
                number = at.TREE_MATCHES if state.nodes.shape[0] > 0 else 1
                best_matches(texts[slot], n + facts[at.ENGINE], state.matches[row, :number])


def best_matches(text: Any, n: int, found: Any) -> None:
    """Write the longest matches of the text's end in itself, of equal ones the newest, as tokens * 2^32 + place."""
    every = []
    for place in range(1, n):
        length = 0
        while length < min(place, at.LONGEST) and text[place - 1 - length] == text[n - 1 - length] >= 0:
            length += 1
        if length:
            every.append((length << 32) + place)
    best = sorted(every, reverse=True)[: len(found)]
    found[: len(best)] = best


def draft(state: State, texts: Any, rows: Rows, drafts: Drafts, vocab_size: int) -> None:
    """Draft for each row what its candidates vote for, a tree if the drafts have `parents`; `scan` comes before."""
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        limit = min(int(rows.limits[row]), drafts.ids.shape[1])
        text = texts[slot]
        facts = state.slots[slot]
        candidates = state.candidates
        n = int(facts[at.END])
        end = n + int(facts[at.ENGINE])
        drafted = 0
        is_current = facts[at.GENERATION] == rows.generations[row]
        if is_current and n > facts[at.START] and limit > 0:
            number = find_candidates(state, slot, text, end, state.matches[row], candidates)
            number = find_corpus_candidates(state, slot, state.corpus_matches[row], text, end, candidates, number)
            number = keep_long_enough(state, candidates, number)
            ask(state, slot, text, end, candidates, number, vocab_size)
            if drafts.parents.shape[0] > 0:
                drafted = grow(state, slot, text, n, candidates, number, limit, vocab_size, row, drafts)
            else:
                drafted = vote(state, slot, text, end, candidates, number, limit, vocab_size, row, drafts)
            end_draft(facts, drafted)
        drafts.lengths[row] = drafted
        drafts.ids[row, drafted:] = -1
        drafts.confidence[row, drafted:] = 0
        drafts.sources[row, drafted:] = -1
        if drafts.parents.shape[0] > 0:
            drafts.parents[row, drafted:] = -1


def vote(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, limit: int, vocab_size: int, row: int,
    drafts: Drafts,
) -> int:  # fmt: skip
    """Draft the token with the longest expected draft, as long as it is likely enough, and return their number.

    The candidates that predicted a token vote on the next one; the engine's tokens come first.
    """
    last = int(text[n - 1])
    alive = candidates[:number, :WEIGHT].copy()
    is_pending = state.slots[slot, at.CHAIN_FOR] == state.slots[slot, at.END]  # an earlier draft is still judged
    begin = drafted = begin_draft(state, slot, text, row, drafts)
    survival = at.SURE
    while drafted < limit:
        alive = at_depth(state, slot, text, n, alive, drafted - begin, vocab_size)
        scores, longest = tally(state, alive, drafted - begin)
        if not scores:
            break
        token = max(
            scores, key=lambda it: scores[it] * (1 + arithmetic.length_class(longest[it]))
        )  # the first among ties
        alive = alive[alive[:, TOKEN] == token]
        keys, source = evidence(state, slot, alive, drafted - begin, last, scores, longest[token])
        level = confidence(state, *keys)
        survival = survival * level // at.LEVELS
        if survival < state.figures[at.LEAST]:
            break
        if not is_pending:
            state.chain[slot, :, drafted] = token, *keys, drafted - 1
        drafts.ids[row, drafted] = last = token
        drafts.confidence[row, drafted] = level / at.LEVELS
        drafts.sources[row, drafted] = source
        drafted += 1
    return drafted


def at_depth(state: State, slot: int, text: Any, n: int, alive: Any, depth: int, vocab_size: int) -> Any:
    """Return the candidates that predict a token at a depth, with the token."""
    facts = state.slots[slot]
    alive[:, TOKEN] = [
        predicted_token(state, text, n, owner_of(facts, it[INDEX]), it[KIND], it[PLACE], depth, vocab_size)
        for it in alive
    ]
    return alive[alive[:, TOKEN] >= 0]


def tally(state: State, alive: Any, depth: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return the votes on each token, with the square of the odds of a kind and length, and its longest match."""
    scores = dict[int, int]()
    longest = dict[int, int]()
    for _, kind, _, length, rank, token in alive.tolist():
        row = arithmetic.vote_row(kind, length + depth)
        voice = arithmetic.weight(arithmetic.log_odds(*state.counts[row].tolist()), rank)
        scores[token] = scores.get(token, 0) + voice
        longest[token] = max(longest.get(token, 0), length + depth)
    return scores, longest


def evidence(
    state: State, slot: int, alive: Any, depth: int, last: int, scores: dict[int, int], longest: int
) -> tuple[tuple[int, int, int], int]:
    """Return the rows that judge a token after `last`, which the candidates `alive` predict, and its source."""
    facts = state.slots[slot]
    token = int(alive[0, TOKEN])
    of = [origin_of(kind) for kind in alive[:, KIND]]
    origins = sum(set(of))
    near = (alive[:, KIND] >= at.NEAR).any()
    size = arithmetic.length_class(longest)
    share = arithmetic.share_class(scores[token], sum(scores.values()))
    owner = int(facts[at.OWNER])
    hit_rate = int(facts[at.HIT_RATE])
    keys = arithmetic.judging_rows(token, last, owner, size, share, len(alive), hit_rate, origins, int(near))
    if 1 in of:
        return keys, int(alive[of.index(1), PLACE] + depth < facts[at.START])
    return keys, 2 if 2 in of else 3


def grow(
    state: State, slot: int, text: Any, n: int, candidates: Any, number: int, limit: int, vocab_size: int, row: int,
    drafts: Drafts,
) -> int:  # fmt: skip
    """Draft the tree of the nodes that are likeliest to be reached and right, and return the number of nodes.

    The candidates' paths are united: those that predict all tokens of a path vote on the next one.  Ties go to the node
    with fewer tokens before it, then to that of the first candidate.
    """
    is_pending = state.slots[slot, at.CHAIN_FOR] == n
    waiting: list[Any] = []

    def consider(alive: Any, depth: int, survival: int, parent: int, last: int) -> None:
        alive = at_depth(state, slot, text, n, alive, depth, vocab_size)
        scores, longest = tally(state, alive, depth)
        for token in scores:
            agreeing = alive[alive[:, TOKEN] == token]
            keys, source = evidence(state, slot, agreeing, depth, last, scores, longest[token])
            level = confidence(state, *keys)
            order = -(survival * level // at.LEVELS), depth, int(agreeing[0, INDEX])
            heapq.heappush(waiting, (*order, parent, level, keys, source, agreeing))

    consider(candidates[:number, :WEIGHT].copy(), 0, at.SURE, -1, int(text[n - 1]))
    nodes = 0
    while waiting and nodes < limit and -waiting[0][0] >= state.figures[at.LEAST]:
        survival, depth, _, parent, level, keys, source, agreeing = heapq.heappop(waiting)
        token = int(agreeing[0, TOKEN])
        if not is_pending:
            state.chain[slot, :, nodes] = token, *keys, parent
        drafts.ids[row, nodes] = token
        drafts.confidence[row, nodes] = level / at.LEVELS
        drafts.sources[row, nodes] = source
        drafts.parents[row, nodes] = parent
        consider(agreeing, depth + 1, -survival, nodes, token)
        nodes += 1
    return nodes


def append(state: State, texts: Any, rows: Rows, engine_ids: Any, drafts: Drafts) -> None:
    """Append the engine's draft to each row's text where it is worth more than lookup's own; draft again after that.

    The decision depends on learnt rates and on the own draft, never on the engine's tokens: tokens that are drawn from
    a distribution keep it only if they are not selected by value.  (Arctic Inference, arXiv 2507.17133, also joins
    suffix decoding and a draft head.)

    Args:
        state, texts, rows: of the step.
        engine_ids: [B, G] int32, negative after the draft's end.
        drafts: what the step has drafted without them.
    """
    for row in range(rows.slots.size):
        slot = rows.slots[row]
        facts = state.slots[slot]
        text = texts[slot]
        end = int(facts[at.END])
        limit = min(engine_ids.shape[1], rows.limits[row], state.chain.shape[2], text.size - end)
        if facts[at.GENERATION] != rows.generations[row]:
            limit = 0
        taken = 0
        own = engine = at.LEVELS  # whether that many tokens are right
        gain = 0
        while taken < limit and engine_ids[row, taken] >= 0:
            own = own * int(drafts.confidence[row, taken] * at.LEVELS) // at.LEVELS
            engine = engine * engine_level(state, slot, taken) // at.LEVELS
            gain += engine - own
            taken += 1
        if gain > 0:
            for k in range(taken):
                text[end + k] = engine_ids[row, k]
            facts[at.ENGINE] = taken
            if facts[at.CHAIN_NEXT] == 0:
                facts[at.CHAIN_FOR] = 0  # so that the new draft is judged in place of the step's first one


def remember(state: State, texts: Any, slot: int, prompt: int, begin: int, end: int, owner: int, number: int) -> None:
    """Enter the tokens from `begin` up to `end` of a row's text as a response.

    Args:
        state, texts: see `layout`.
        slot: the text's slot, which may have been freed but not used again.
        prompt: the first token that may be stored before the response.
        begin, end: places in the text, which ends at `State.slots[slot, END]` at the latest; if they are too far apart,
            only the end is kept.
        owner: who may draft from it, above 0.
        number: the number of the owner's responses that were entered before.
    """
    end = min(end, int(state.slots[slot, at.END]))
    if end <= begin:
        return
    capacity = state.ring.size
    base = int(state.end[0])
    entry = arithmetic.entry_of(owner, number)
    begin = max(begin, end - capacity // 4)
    first = max(prompt, begin - at.CONTEXT)
    text = texts[slot, first:end]
    length = end - first
    size = (length + 2 + at.GRANULE - 1) // at.GRANULE * at.GRANULE
    for k in range(size):
        state.ring[(base + k) & (capacity - 1)] = text[k - 1] if 0 < k <= length else -1
        state.owners[((base + k) & (capacity - 1)) // at.GRANULE] = owner
    for key in range(len(at.KEYS)):
        table = state.buckets[min(key, 1)]
        for k in range(begin - first, length):
            bucket = arithmetic.bucket_of(text, k, at.KEYS[key], owner, len(table))
            if bucket >= 0:
                table[bucket, entry] = max(table[bucket, entry], base + 1 + k)
    state.end[0] = base + size
