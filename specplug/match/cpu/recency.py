"""The recency tree: the longest earlier matches of a growing text, in 8 bytes per token.

Place i of a text is between its tokens i - 1 and i.  Its *key* is the text before it, read backwards: token i - 1, then
i - 2, up to `cap` tokens.  Places are in binary search trees by key that are also heaps by recency: no place is above a
newer one.  Such a tree has a unique shape, whatever operations built it.  A new place becomes the root, and the old
tree is split at its key on one walk down.  That walk meets, newest first, exactly those earlier places that are nearer
to the new key, on their side of it, than all newer places.  They are the candidates, and the longest match is among
them.  The oldest places are at the bottom, so forgetting them is free.

The idea is that of the binary-tree match finders of LZ77 compressors (I. Pavlov, LZMA, `bt4`), with keys read backwards
and without hash collisions.  tests/match/reference/recency.py is the plain reference that tests compare it with.

A walk visits about 2 ln(k) of the k places with the same last token.  Tokens below 0 are not text and match nothing;
neither do tokens before `oldest`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import prefetch

GRANULE = 16
"""Tokens per entry of an owner table."""

MOST_VISITS = 512
"""The most nodes that a walk visits.  Only adversarial texts lead so deep; the places beyond are forgotten."""

FEWEST_VISITS, DEFAULT_VISITS, SPARE_VISITS = 6, 24, 1 << 14
"""Budget of the walks of n places that are added together: DEFAULT_VISITS * n + SPARE_VISITS nodes.

When it is spent, each walk ends after FEWEST_VISITS.  Prose and code take 5 to 7 visits per place, random bits 20.  An
adversarial text thus loses matches of its own and does not delay other requests.
"""

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)


@compiled
def bucket(token: int, owner: int, size: int) -> int:
    """Return the tree, of `size` (a power of two), for keys that begin with `token` in texts of `owner`."""
    mixed = (np.uint64(token) + np.uint64(owner) * _SPREAD) * _MIX
    return np.int64((mixed >> np.uint64(32)) & np.uint64(size - 1))  # type: ignore[return-value]


@compiled
def token_at(text: Any, mask: int, oldest: int, place: int) -> int:
    """Return the token at `place`, -1 if it is not text."""
    if place < oldest:
        return -1
    return max(text[place & mask], -1)  # type: ignore[no-any-return]


@compiled
def owner_of(owners: Any, mask: int, place: int) -> int:
    """Return the owner of the token before `place`; 0 if owners are not distinguished."""
    if owners.size == 0:
        return 0
    return owners[((place - 1) & mask) // GRANULE]  # type: ignore[no-any-return]


@compiled
def _prefetch_place(text: Any, owners: Any, children: Any, mask: int, place: int, matched: int) -> None:
    """Prefetch the memory that a walk would read at `place`."""
    prefetch(text, (place - 1 - matched) & mask)
    prefetch(children, 2 * (place & mask))
    if matched == 0:
        prefetch(owners, ((place - 1) & mask) // GRANULE)


@compiled
def allow_visits(visits: Any, count: int) -> None:
    """Set `visits` [1] int64 to the budget of the walks of `count` places that are added together."""
    visits[0] = SPARE_VISITS + DEFAULT_VISITS * count


@compiled
def insert(
    text: Any,
    mask: int,
    oldest: int,
    owners: Any,
    heads: Any,
    children: Any,
    place: int,
    cap: int,
    places: Any,
    lengths: Any,
    budget: Any,
) -> int:
    """Add `place`, and find its candidates.

    Args:
        text: [C] int32; for a ring, C is a power of two.  Token i is at i & mask.
        mask: C - 1 for a ring, -1 for a text that begins at 0.
        oldest: the oldest token that is still present.  If it is above 0, places up to oldest + cap are forgotten, and
            at least those whose granule may have another owner by now.
        owners: [C / GRANULE] int32, the owner of each granule; empty if there is only one owner.
        heads: [H] int32, the root of each tree, 0 for none.
        children: [2 C] int32, left and right child of each place.
        place: greater than all places added so far; its tokens must be present.
        cap: the most tokens of a key.
        places, lengths: [K] int32, filled with the candidates, newest first, and their match lengths.  If there are
            more than K, the shortest matches are dropped, the newest among ties.
        budget: [1] int64, nodes that walks may still visit together, see `allow_visits`; counted down.

    Returns:
        the number of candidates, at most K.
    """
    owner = owner_of(owners, mask, place)
    tree = bucket(text[(place - 1) & mask], owner, heads.size)
    at = heads[tree]
    heads[tree] = place
    gone = oldest + max(cap, GRANULE) if oldest > 0 else 0
    left, right = 2 * (place & mask), 2 * (place & mask) + 1  # links for the next smaller and larger subtree
    matches_left, matches_right, found, visits = 0, 0, 0, 0
    most = min(MOST_VISITS, max(FEWEST_VISITS, budget[0]))
    while at > gone and visits < most:
        visits += 1
        budget[0] -= 1
        n = min(matches_left, matches_right)
        node = 2 * (at & mask)
        _prefetch_place(text, owners, children, mask, children[node], n)
        _prefetch_place(text, owners, children, mask, children[node + 1], n)
        whose = owner if n else owner_of(owners, mask, at)
        a, b = 0, 0
        if whose != owner:
            a, b = whose, owner
        else:
            while n < cap:
                a, b = token_at(text, mask, oldest, at - 1 - n), token_at(text, mask, oldest, place - 1 - n)
                if a != b or a < 0:
                    break
                n += 1
            if n:
                found = _note(places, lengths, found, at, n)
        if n == cap:  # equal keys: the newer place replaces the older one
            children[left], children[right] = children[node], children[node + 1]
            return found
        if a <= b:  # ties: the older place counts as smaller
            children[left] = at
            left, at, matches_left = node + 1, children[node + 1], n
        else:
            children[right] = at
            right, at, matches_right = node, children[node], n
    children[left] = children[right] = 0
    return found


@compiled
def search(
    text: Any,
    mask: int,
    oldest: int,
    owners: Any,
    heads: Any,
    children: Any,
    owner: int,
    context: Any,
    end: int,
    cap: int,
    places: Any,
    lengths: Any,
) -> int:
    """Find the candidates of a context that is not in the tree itself; see `insert`.

    Args:
        owner: the owner of the texts to search.
        context: [E] int32; the context is the text before `end`, read backwards, at most `cap` tokens.
    """
    last = context[end - 1]
    if last < 0:
        return 0
    at = heads[bucket(last, owner, heads.size)]
    gone = oldest + max(cap, GRANULE) if oldest > 0 else 0
    matches_left, matches_right, found, visits = 0, 0, 0, 0
    while at > gone and visits < MOST_VISITS:
        visits += 1
        n = min(matches_left, matches_right)
        node = 2 * (at & mask)
        _prefetch_place(text, owners, children, mask, children[node], n)
        _prefetch_place(text, owners, children, mask, children[node + 1], n)
        whose = owner if n else owner_of(owners, mask, at)
        a, b = 0, 0
        if whose != owner:
            a, b = whose, owner
        else:
            while n < cap:
                a = token_at(text, mask, oldest, at - 1 - n)
                b = max(context[end - 1 - n], -1) if n < end else -1
                if a != b or a < 0:
                    break
                n += 1
            if n:
                found = _note(places, lengths, found, at, n)
        if n == cap:
            return found
        if a <= b:
            at, matches_left = children[node + 1], n
        else:
            at, matches_right = children[node], n
    return found


@compiled
def _note(places: Any, lengths: Any, found: int, place: int, length: int) -> int:
    """Append a candidate; if all entries are taken, it replaces the shortest (the newest among ties)."""
    if places.size == 0:
        return 0
    if found == places.size:
        shortest = 0
        for k in range(1, found):
            if lengths[k] < lengths[shortest]:
                shortest = k
        if length < lengths[shortest]:
            return found
        for k in range(shortest, found - 1):
            places[k], lengths[k] = places[k + 1], lengths[k + 1]
        found -= 1
    places[found], lengths[found] = place, length
    return found + 1
