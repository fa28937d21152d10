"""Drafting for one row: a chain of the likeliest tokens, or the tree with the most expected accepted tokens."""

from __future__ import annotations

from typing import Any

from specplug.match.cpu.candidates import gather, gather_anew
from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.engine_draft import (
    agrees,
    engine_draft_stands,
    note_engine_draft,
    num_engine_tokens,
    take_engine_draft,
)
from specplug.match.cpu.evidence import (
    FROM,
    NEAR,
    OWN,
    RESPONSE,
    confidence,
    context_key,
    evidence_key,
    prefetch_counts,
    source_bit,
    token_key,
    vote_key,
)
from specplug.match.cpu.voting import best, follow, predicted, token_at, vote

BRANCHES = 6
"""The most child tokens of a node that a tree considers."""

PREFETCH_DISTANCE = 3
"""Prefetch distance in tokens."""


@compiled
def _remember_candidate_votes(state: Any, slot: int, count: int) -> None:
    """Store each candidate's predicted token, to learn later whether it was right."""
    rows, workspace = state.rows, state.workspace
    for k in range(count):
        kind = workspace.kind[0, k]
        rows.candidate_vote_tokens[slot, k] = token_at(state, slot, kind, workspace.at[0, k])
        rows.candidate_vote_keys[slot, k] = vote_key(kind, workspace.length[0, k])
    rows.num_candidate_votes[slot] = count


@compiled
def _consider(state: Any, slot: int, entry: int, parent: int, t: int, share: float, last: int) -> float:
    """Record token `t` of the workspace as considered, and return its confidence."""
    rows, workspace = state.rows, state.workspace
    length, owner = workspace.longest[t], rows.owners[slot]
    evidence = evidence_key(
        length, share, workspace.support[t], rows.hit_rate[slot], workspace.sources[t], workspace.near[t]
    )
    context, token = context_key(last, owner, length, share), token_key(workspace.token[t], owner, share)
    rows.tokens[slot, entry], rows.parents[slot, entry] = workspace.token[t], parent
    rows.evidence[slot, entry], rows.contexts[slot, entry], rows.token_keys[slot, entry] = evidence, context, token
    return confidence(state.tables, evidence, context, token)


@compiled
def _votes(workspace: Any, tokens: int) -> float:
    total = 0.0
    for t in range(tokens):
        total += workspace.score[t]
    return total


@compiled
def _last(state: Any, slot: int, depth: int) -> int:
    texts = state.texts
    return state.workspace.drafted[depth - 1] if depth else texts.text[slot, texts.lengths[slot] - 1]  # type: ignore[no-any-return]


@compiled
def _source(state: Any, slot: int, t: int) -> int:
    """Return the first source that predicts a token: 0 own text, 1 a reference, 2 responses, 3 corpora."""
    workspace = state.workspace
    if workspace.sources[t] & 1 == 0:
        return 2 if workspace.sources[t] & 2 else 3
    return int(workspace.origin[t] < state.starts[slot])


@compiled
def draft_chain(state: Any, slot: int, limit: int, engine_ids: Any, ids: Any, confidences: Any, sources: Any) -> int:
    """Draft the likeliest token repeatedly, while the whole draft survives with at least `state.min_survival`.

    If the engine's own drafter has drafted, its tokens may come first; see `engine_draft`.

    Args:
        state: the record of all memory, see `Lookup._state`.
        slot: the slot of the text to draft for.
        limit: the most tokens.
        engine_ids: [G] int32, the engine's draft, -1 after its end; G is 0 if it has no drafter.
        ids, confidences, sources: [N] int32, float32 and int32, to be filled; see `_source`.

    Returns:
        the number of drafted tokens.
    """
    rows, count = state.rows, gather(state, slot)
    _remember_candidate_votes(state, slot, count)
    drafted = _extend_chain(state, slot, count, 0, limit, 1.0, ids, confidences, sources)
    taken = num_engine_tokens(engine_ids, limit)
    if taken:
        note_engine_draft(rows, slot, engine_ids, taken)
        if engine_draft_stands(rows, slot, taken, drafted, confidences):
            is_same = agrees(rows, slot, taken, drafted, ids)
            survival = take_engine_draft(state, slot, taken, is_same, ids, confidences, sources)
            if not is_same:
                drafted = _extend_chain(state, slot, 0, taken, limit, survival, ids, confidences, sources)
    rows.num_considered[slot] = drafted
    rows.drafted_for[slot] = state.texts.lengths[slot]
    return drafted


@compiled
def _extend_chain(
    state: Any,
    slot: int,
    count: int,
    drafted: int,
    limit: int,
    survival: float,
    ids: Any,
    confidences: Any,
    sources: Any,
) -> int:
    """Extend a draft of `drafted` tokens, which `count` candidates predict, up to `limit`; return its length."""
    rows, workspace = state.rows, state.workspace
    while drafted < limit:
        if count == 1 and drafted:
            drafted = _copy_on(state, slot, drafted, limit, survival, ids, confidences, sources)
            break
        if count == 0 and drafted:
            count = gather_anew(state, slot, 0, drafted)
        tokens = vote(state, slot, 0, count)
        if tokens == 0:
            break
        t = best(workspace, tokens)
        share = workspace.score[t] / _votes(workspace, tokens)
        last = _last(state, slot, drafted)
        chance = _consider(state, slot, drafted, drafted - 1, t, share, last)
        survival *= chance
        if survival < state.min_survival:
            break
        token = workspace.token[t]
        ids[drafted], confidences[drafted], sources[drafted] = token, chance, _source(state, slot, t)
        workspace.drafted[drafted] = token
        prefetch_counts(state.tables, token, rows.owners[slot], workspace.longest[t] + 1, share)
        count = follow(state, slot, 0, count, token, 0)
        drafted += 1
    return drafted


@compiled
def _copy_on(
    state: Any, slot: int, drafted: int, limit: int, survival: float, ids: Any, confidences: Any, sources: Any
) -> int:
    """Copy the only remaining candidate to the end, with the same result as voting; return the number drafted.

    Most tokens are drafted this way.  The candidate's text gives the next tokens early enough to prefetch their tables.
    """
    texts, memory, rows, tables, workspace = state.texts, state.memory, state.rows, state.tables, state.workspace
    text, n, responses, end, copied = (
        texts.text[slot],
        texts.lengths[slot],
        memory.text,
        memory.ends[0],
        workspace.drafted,
    )
    kind, at, length = workspace.kind[0, 0], workspace.at[0, 0], workspace.length[0, 0]
    owner, hit_rate, joined, near = rows.owners[slot], rows.hit_rate[slot], source_bit(kind), int(kind >= NEAR)
    source, start = kind & FROM, state.starts[slot]
    stop = n if source == OWN else (end if source == RESPONSE else 0)
    last, min_survival = copied[drafted - 1], state.min_survival
    while drafted < limit:
        if at + PREFETCH_DISTANCE < stop:
            prefetch_counts(
                tables,
                predicted(texts, text, n, responses, end, kind, at + PREFETCH_DISTANCE, copied),
                owner,
                length,
                1.0,
            )
        token = predicted(texts, text, n, responses, end, kind, at, copied)
        if token < 0:
            break
        evidence, context = evidence_key(length, 1.0, 1, hit_rate, joined, near), context_key(last, owner, length, 1.0)
        own = token_key(token, owner, 1.0)
        chance = confidence(tables, evidence, context, own)
        survival *= chance
        if survival < min_survival:
            break
        rows.tokens[slot, drafted], rows.parents[slot, drafted] = token, drafted - 1
        rows.evidence[slot, drafted], rows.contexts[slot, drafted] = evidence, context
        rows.token_keys[slot, drafted] = own
        ids[drafted], confidences[drafted], copied[drafted] = token, chance, token
        sources[drafted] = int(at < start) if source == OWN else (2 if source == RESPONSE else 3)
        last, at, length, drafted = token, at + 1, length + 1, drafted + 1
    return drafted


@compiled
def draft_tree(state: Any, slot: int, limit: int, ids: Any, confidences: Any, sources: Any, parents: Any) -> int:
    """Grow a tree by the node that is likeliest to be reached and accepted, until it has `limit` nodes.

    Args:
        state, slot: see `draft_chain`.
        limit: the most nodes.
        ids, confidences, sources: see `draft_chain`.
        parents: [N] int32, to be filled.

    Returns:
        see `draft_chain`.
    """
    rows, tree = state.rows, state.tree
    tree.counts[0] = gather(state, slot)
    _remember_candidate_votes(state, slot, tree.counts[0])
    tree.depths[0], tree.survivals[0], tree.entries[0] = 0, 1.0, -1
    nodes, considered, node = 1, 0, 0
    while True:
        considered = _open(state, slot, node, considered)
        if nodes > limit:
            break
        entry = _likeliest(tree, considered)
        if entry < 0 or tree.chances[entry] < state.min_survival:
            break
        parent = tree.nodes[entry]
        node, token = nodes, rows.tokens[slot, entry]
        nodes += 1
        tree.entries[node], tree.above[node], tree.depths[node] = entry, parent, tree.depths[parent] + 1
        tree.survivals[node] = tree.chances[entry]
        tree.chances[entry] = -1.0
        ids[node - 1], parents[node - 1], sources[node - 1] = token, parent - 1, tree.sources[entry]
        confidences[node - 1] = tree.survivals[node] / max(tree.survivals[parent], 1e-9)
        _spell(state, slot, parent)
        tree.counts[node] = follow(state, slot, parent, tree.counts[parent], token, node)
    rows.num_considered[slot] = considered
    rows.drafted_for[slot] = state.texts.lengths[slot]
    return nodes - 1


@compiled
def _open(state: Any, slot: int, node: int, considered: int) -> int:
    """Consider the tokens that may follow a node; return the number of considered tokens so far."""
    workspace, tree = state.workspace, state.tree
    depth = tree.depths[node]
    _spell(state, slot, node)
    if tree.counts[node] == 0 and depth:
        tree.counts[node] = gather_anew(state, slot, node, depth)
    tokens = vote(state, slot, node, tree.counts[node])
    total, last = _votes(workspace, tokens), _last(state, slot, depth)
    for _ in range(min(tokens, BRANCHES)):
        if considered == tree.chances.size:
            break
        t = 0
        for other in range(1, tokens):
            if workspace.score[other] > workspace.score[t]:
                t = other
        share = workspace.score[t] / total
        chance = _consider(state, slot, considered, tree.entries[node], t, share, last)
        tree.chances[considered] = tree.survivals[node] * chance
        tree.nodes[considered] = node
        tree.sources[considered] = _source(state, slot, t)
        workspace.score[t] = -1.0
        considered += 1
    return considered


@compiled
def _likeliest(tree: Any, considered: int) -> int:
    """Return the entry with the best chance among those not taken yet, the first among ties; -1 for none."""
    found, most = -1, 0.0
    for entry in range(considered):
        if tree.chances[entry] > most:
            found, most = entry, tree.chances[entry]
    return found


@compiled
def _spell(state: Any, slot: int, node: int) -> None:
    """Write the tokens on the path to a node into `workspace.drafted`, where a draft's tokens are read."""
    rows, workspace, tree = state.rows, state.workspace, state.tree
    for depth in range(tree.depths[node] - 1, -1, -1):
        workspace.drafted[depth] = rows.tokens[slot, tree.entries[node]]
        node = tree.above[node]
