"""What a row's new tokens say about its newest votes and draft; the same code in both forms for CPUs.

A draft is judged along the tokens that turned out right, whether or not the engine verified them: at each of them, all
tokens that were drafted after it are judged.  If a step emits fewer tokens than the draft has, the next steps go on.
Meanwhile newer drafts are judged by their votes alone.
"""

from __future__ import annotations

from typing import Any

from numba.extending import register_jitable

from specplug.lookup import arithmetic, counts
from specplug.lookup import layout as at
from specplug.lookup.candidates import owner_of, predicted_token
from specplug.lookup.layout import INDEX, KIND, LENGTH, PLACE, Drafts, State


@register_jitable
def ask(state: State, slot: int, text: Any, n: int, candidates: Any, number: int, vocab_size: int) -> None:
    """Store what each candidate predicts next, which `learn` judges."""
    state.voted[slot, 0, :] = -1
    for k in range(number):
        index = candidates[k, INDEX]
        kind = candidates[k, KIND]
        owner = owner_of(state.slots[slot], index)
        state.voted[slot, 0, index] = predicted_token(state, text, n, owner, kind, candidates[k, PLACE], 0, vocab_size)
        state.voted[slot, 1, index] = arithmetic.vote_row(kind, candidates[k, LENGTH])
    state.slots[slot, at.VOTED_FOR] = n


@register_jitable
def confidence(state: State, evidence: int, context: int, token: int) -> int:
    """Return the level of a token being right: the mean of three log-odds, in which the evidence counts twice."""
    table = state.counts
    seen = arithmetic.log_odds(int(table[evidence, 0]), int(table[evidence, 1]))
    level = min(max(arithmetic.probability(seen), 20), at.LEVELS - 20)
    after = arithmetic.log_odds_after(int(table[context, 0]), int(table[context, 1]), level)
    after += arithmetic.log_odds_after(int(table[token, 0]), int(table[token, 1]), level)
    return arithmetic.probability((2 * seen + after) >> 2)  # type: ignore[no-any-return]


@register_jitable
def begin_draft(state: State, slot: int, text: Any, row: int, drafts: Drafts) -> int:
    """Begin a row's draft with the engine's tokens, and return their number.

    Their confidence depends on their positions and not on their values, so that drawn tokens keep their distribution.
    """
    facts = state.slots[slot]
    chain = state.chain[slot]
    n = facts[at.END]
    for k in range(facts[at.ENGINE]):
        of_all, own = engine_rows(state, slot, k)
        if facts[at.CHAIN_FOR] != n:
            chain_token(chain, k, text[n + k], of_all, own, -1, k - 1)
        drafts.ids[row, k] = text[n + k]
        drafts.confidence[row, k] = engine_level(state, slot, k) / at.LEVELS
        drafts.sources[row, k] = state.figures[at.ENGINE_SOURCE]
    return int(facts[at.ENGINE])


@register_jitable
def chain_token(chain: Any, k: int, token: int, evidence: int, context: int, own: int, parent: int) -> None:
    """Write the k-th drafted token, with the rows that judge it, to the chain that is being judged."""
    chain[at.CHAIN_TOKEN, k] = token
    chain[at.CHAIN_EVIDENCE, k] = evidence
    chain[at.CHAIN_CONTEXT, k] = context
    chain[at.CHAIN_OWN, k] = own
    chain[at.CHAIN_PARENT, k] = parent


@register_jitable
def engine_rows(state: State, slot: int, k: int) -> tuple[int, int]:
    """Return the rows of counts of the engine's k-th token: of all requests, and of a slot's."""
    engine_tokens = (state.counts.shape[0] - counts.TOKENS_END) // (state.slots.shape[0] + 1)
    return counts.TOKENS_END + k, counts.TOKENS_END + engine_tokens * (1 + slot) + k


@register_jitable
def engine_level(state: State, slot: int, k: int) -> int:
    """Return the level of the engine's k-th token being right."""
    of_all, own = engine_rows(state, slot, k)
    level = arithmetic.probability(arithmetic.log_odds(int(state.counts[of_all, 0]), int(state.counts[of_all, 1])))
    hits = int(state.counts[own, 0])
    tries = int(state.counts[own, 1])
    return arithmetic.probability(arithmetic.log_odds_after(hits, tries, level, at.COMMON_TRIES // 2))  # type: ignore[no-any-return]


@register_jitable
def end_draft(facts: Any, drafted: int) -> None:
    """Mark a draft for judging, unless an earlier draft is still being judged."""
    if facts[at.CHAIN_FOR] != facts[at.END]:
        facts[at.CHAIN_FOR] = facts[at.END] if drafted else 0
        facts[at.CHAIN_NEXT] = 0
        facts[at.CHAIN_END] = drafted


@register_jitable
def learn(state: State, slot: int, text: Any, n: int) -> None:
    """Judge the newest votes and the draft by the tokens that followed, and share these tokens with siblings."""
    facts = state.slots[slot]
    chain = state.chain[slot]
    voted = state.voted[slot]
    if 0 < facts[at.VOTED_FOR] < n:
        for index in range(at.CANDIDATES):
            if voted[0, index] >= 0:
                count(state, voted[1, index], voted[0, index] == text[facts[at.VOTED_FOR]])
    if facts[at.VOTED_FOR] != n:
        facts[at.VOTED_FOR] = 0
    place = facts[at.CHAIN_FOR]
    node = facts[at.CHAIN_NEXT] - 1
    if 0 < place < n:
        is_first = node < 0 and chain[at.CHAIN_EVIDENCE, 0] < counts.TOKENS_END
        is_right = True
        while is_right and place < n:
            right = judge(state, chain, node, int(facts[at.CHAIN_END]), int(text[place]))
            is_right = right >= 0
            if is_right:
                node = right
            place += 1
        if is_first:
            facts[at.HIT_RATE] += ((at.LEVELS if node >= 0 else 0) - facts[at.HIT_RATE]) * 51 >> 8
        is_judged = not is_right
        if is_right:
            is_judged = True
            for k in range(node + 1, facts[at.CHAIN_END]):
                is_judged = is_judged and chain[at.CHAIN_PARENT, k] != node
        facts[at.CHAIN_FOR] = 0 if is_judged else n
        facts[at.CHAIN_NEXT] = node + 1
    elif place > n:
        facts[at.CHAIN_FOR] = 0
    if facts[at.GROUP]:
        share(state, facts, text, n)


@register_jitable
def judge(state: State, chain: Any, node: int, end: int, token: int) -> int:
    """Judge the tokens that were drafted after a node by the emitted token; return the right one, -1 for none."""
    right = -1
    for k in range(node + 1, end):
        if chain[at.CHAIN_PARENT, k] == node:
            is_right = chain[at.CHAIN_TOKEN, k] == token
            for rows in range(at.CHAIN_EVIDENCE, at.CHAIN_PARENT):
                count(state, chain[rows, k], is_right)
            if is_right:
                right = k
    return right


@register_jitable
def count(state: State, row: int, is_right: bool) -> None:
    """Count a try, unless the row is -1."""
    if row >= 0:
        state.counts[row, 0] += at.UNIT * is_right
        state.counts[row, 1] += at.UNIT


@register_jitable
def share(state: State, facts: Any, text: Any, n: int) -> None:
    """Copy a text's new tokens to its span of the ring, as far as they fit and while the span is live."""
    capacity = state.ring.size
    group = int(facts[at.GROUP])
    prompt = int(facts[at.PROMPT])
    first = max(int(facts[at.START]), prompt - at.CONTEXT)  # what is read again from before has no room in the span
    shift = int(facts[at.SPAN]) + 1 - first
    is_live = facts[at.SPAN] >= state.end[0] - capacity
    for k in range(max(facts[at.WRITTEN], first), min(n, facts[at.SPAN_END] - shift) if is_live else 0):
        state.ring[(k + shift) & (capacity - 1)] = text[k]
        bucket = arithmetic.bucket_of(text, k, at.KEYS[0], group, state.buckets.shape[1]) if k >= prompt else -1
        if bucket >= 0:
            entry = facts[at.ENTRY]
            state.buckets[0, bucket, entry] = max(state.buckets[0, bucket, entry], k + shift)
    facts[at.WRITTEN] = max(facts[at.WRITTEN], n)
