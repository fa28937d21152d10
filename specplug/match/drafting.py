"""One row's draft: a chain of the likeliest tokens, or the tree with the most expected accepted tokens."""

from __future__ import annotations

from typing import Any

from specplug.match.compiled import compiled
from specplug.match.evidence import confidence, context_key, evidence_key, vote_key
from specplug.match.voting import best, follow, gather, gather_anew, token_at, vote

BRANCHES = 6
"""Tokens of a node that a tree considers."""


@compiled
def _remember_ballots(texts: Any, memory: Any, rows: Any, bench: Any, slot: int, count: int) -> None:
    """Keep what each candidate said, to learn later whether it was right."""
    for k in range(count):
        kind = bench.kind[0, k]
        rows.ballot_tokens[slot, k] = token_at(texts, memory, slot, kind, bench.at[0, k], bench.drafted)
        rows.ballot_keys[slot, k] = vote_key(kind, bench.length[0, k])
    rows.num_ballots[slot] = count


@compiled
def _consider(
    rows: Any, tables: Any, bench: Any, slot: int, entry: int, parent: int, t: int, share: float, last: int
) -> float:
    """Note token `t` of the bench as considered, and return its confidence."""
    length, owner = bench.longest[t], rows.owners[slot]
    evidence = evidence_key(length, share, bench.support[t], rows.luck[slot], bench.sources[t], bench.near[t])
    context = context_key(last, owner, length, share)
    rows.tokens[slot, entry], rows.parents[slot, entry] = bench.token[t], parent
    rows.evidence[slot, entry], rows.contexts[slot, entry] = evidence, context
    return confidence(tables, evidence, context)


@compiled
def _votes(bench: Any, tokens: int) -> float:
    total = 0.0
    for t in range(tokens):
        total += bench.score[t]
    return total


@compiled
def _last(texts: Any, bench: Any, slot: int, depth: int) -> int:
    return bench.drafted[depth - 1] if depth else texts.text[slot, texts.lengths[slot] - 1]  # type: ignore[no-any-return]


@compiled
def _source(texts: Any, bench: Any, starts: Any, slot: int, t: int) -> int:
    """Return which source stands behind a token: 0 own text, 1 a reference, 2 responses alone."""
    if bench.sources[t] == 2:
        return 2
    return int(bench.sources[t] == 1 and bench.origin[t] < starts[slot])


@compiled
def draft_chain(
    texts: Any,
    memory: Any,
    rows: Any,
    tables: Any,
    bench: Any,
    starts: Any,
    slot: int,
    limit: int,
    cap: int,
    shortest: int,
    least: float,
    ids: Any,
    confidences: Any,
) -> tuple[int, int]:
    """Draft the likeliest token, again and again, while the whole draft survives with probability `least`.

    Args:
        starts: [S] int32, where each slot's own text begins, behind its references.
        limit: most tokens.
        ids, confidences: [N] int32 and float32, to be filled.

    Returns:
        how many tokens were drafted, and from which source the first.
    """
    count = gather(texts, memory, rows, bench, slot, cap, shortest)
    _remember_ballots(texts, memory, rows, bench, slot, count)
    drafted, source, survival = 0, -1, 1.0
    while drafted < limit:
        if count == 0 and drafted:
            count = gather_anew(texts, memory, rows, bench, slot, 0, drafted, cap, shortest)
        tokens = vote(texts, memory, tables, bench, slot, 0, count)
        if tokens == 0:
            break
        t = best(bench, tokens)
        share = bench.score[t] / _votes(bench, tokens)
        last = _last(texts, bench, slot, drafted)
        chance = _consider(rows, tables, bench, slot, drafted, drafted - 1, t, share, last)
        survival *= chance
        if survival < least:
            break
        if drafted == 0:
            source = _source(texts, bench, starts, slot, t)
        token = bench.token[t]
        ids[drafted], confidences[drafted] = token, chance
        bench.drafted[drafted] = token
        count = follow(texts, memory, bench, slot, 0, count, token, 0)
        drafted += 1
    rows.num_considered[slot] = drafted
    rows.drafted_for[slot] = texts.lengths[slot]
    return drafted, source


@compiled
def draft_tree(
    texts: Any,
    memory: Any,
    rows: Any,
    tables: Any,
    bench: Any,
    starts: Any,
    slot: int,
    limit: int,
    cap: int,
    shortest: int,
    least: float,
    ids: Any,
    confidences: Any,
    parents: Any,
    tree: Any,
) -> tuple[int, int]:
    """Grow a tree by the node that is likeliest to be reached and accepted, until it has `limit` nodes.

    Args:
        parents: [N] int32, to be filled, too.
        tree: the tree's own scratch memory, see `Tree`.

    Returns:
        see `draft_chain`.
    """
    tree.counts[0] = gather(texts, memory, rows, bench, slot, cap, shortest)
    _remember_ballots(texts, memory, rows, bench, slot, tree.counts[0])
    tree.depths[0], tree.survivals[0], tree.entries[0] = 0, 1.0, -1
    nodes, considered, source, node = 1, 0, -1, 0
    while True:
        considered = _open(texts, memory, rows, tables, bench, starts, slot, node, considered, cap, shortest, tree)
        if nodes > limit:
            break
        entry = _likeliest(tree, considered)
        if entry < 0 or tree.chances[entry] < least:
            break
        parent = tree.nodes[entry]
        node, token = nodes, rows.tokens[slot, entry]
        nodes += 1
        tree.entries[node], tree.above[node], tree.depths[node] = entry, parent, tree.depths[parent] + 1
        tree.survivals[node] = tree.chances[entry]
        tree.chances[entry] = -1.0
        ids[node - 1], parents[node - 1] = token, parent - 1
        confidences[node - 1] = tree.survivals[node] / max(tree.survivals[parent], 1e-9)
        if node == 1:
            source = tree.sources[entry]
        _spell(rows, bench, slot, tree, parent)
        tree.counts[node] = follow(texts, memory, bench, slot, parent, tree.counts[parent], token, node)
    rows.num_considered[slot] = considered
    rows.drafted_for[slot] = texts.lengths[slot]
    return nodes - 1, source


@compiled
def _open(
    texts: Any,
    memory: Any,
    rows: Any,
    tables: Any,
    bench: Any,
    starts: Any,
    slot: int,
    node: int,
    considered: int,
    cap: int,
    shortest: int,
    tree: Any,
) -> int:
    """Consider the tokens that may follow a node; return how many are considered by now."""
    depth = tree.depths[node]
    _spell(rows, bench, slot, tree, node)
    if tree.counts[node] == 0 and depth:
        tree.counts[node] = gather_anew(texts, memory, rows, bench, slot, node, depth, cap, shortest)
    tokens = vote(texts, memory, tables, bench, slot, node, tree.counts[node])
    total, last = _votes(bench, tokens), _last(texts, bench, slot, depth)
    for _ in range(min(tokens, BRANCHES)):
        if considered == tree.chances.size:
            break
        t = 0
        for other in range(1, tokens):
            if bench.score[other] > bench.score[t]:
                t = other
        share = bench.score[t] / total
        chance = _consider(rows, tables, bench, slot, considered, tree.entries[node], t, share, last)
        tree.chances[considered] = tree.survivals[node] * chance
        tree.nodes[considered] = node
        tree.sources[considered] = _source(texts, bench, starts, slot, t)
        bench.score[t] = -1.0
        considered += 1
    return considered


@compiled
def _likeliest(tree: Any, considered: int) -> int:
    """Return the entry with the best chance among those not taken yet, the first of equals; -1 for none."""
    found, most = -1, 0.0
    for entry in range(considered):
        if tree.chances[entry] > most:
            found, most = entry, tree.chances[entry]
    return found


@compiled
def _spell(rows: Any, bench: Any, slot: int, tree: Any, node: int) -> None:
    """Write the tokens on the path to a node where a draft's tokens are read from."""
    for depth in range(tree.depths[node] - 1, -1, -1):
        bench.drafted[depth] = rows.tokens[slot, tree.entries[node]]
        node = tree.above[node]
