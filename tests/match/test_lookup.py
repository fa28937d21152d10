"""Lookup drafts what its plain reference drafts, to the last bit, whatever happens to its texts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu.lookup import Lookup
from specplug.match.cpu.texts import NO_TEXT
from specplug.match.options import LookupSettings
from tests.match.driver import POISON, Client, Talk, both
from tests.match.reference.lookup import ReferenceLookup

OPTIONS = [
    LookupSettings(max_n=64, memory_tokens=1024),
    LookupSettings(max_n=3, min_survival=1e-5, memory_tokens=256),
    LookupSettings(min_n=1, max_n=20, memory_tokens=256),
    LookupSettings(min_n=2, max_n=5, min_survival=0.05, memory_tokens=0),
]


def play(talk: Talk, players: tuple[Client, ReferenceLookup], steps: int, *, corpus_indexes: bool = False) -> int:
    """Let both live through the same; return how many tokens were drafted."""
    client, plain = players
    drafted = 0
    if corpus_indexes:
        load(talk, players)
    for slot in range(talk.slots):
        start(talk, players, slot)
    for _ in range(steps):
        slots, new, lengths, limits = talk.batch()
        client.ingest(slots, new, lengths)
        plain.ingest(slots, new, lengths)
        got, want = client.propose(slots, limits), plain.propose(slots, limits)
        assert got == want
        drafted += sum(len(draft.ids) for draft in got)
        if corpus_indexes and talk.rng.random() < 0.1:
            load(talk, players)
        if talk.rng.random() < 0.15:
            slot, owner = talk.rng.randrange(talk.slots), talk.rng.choice(["a", "b", ""])
            begin = talk.rng.randrange(talk.length[slot] + 1)
            client.lookup.remember(slot, owner, begin, talk.length[slot] + 1)
            plain.remember(slot, owner, begin, talk.length[slot] + 1)
            start(talk, players, slot)
    for learnt, expected in zip(client.lookup.tables.arrays, plain.learnt.arrays, strict=True):
        assert np.array_equal(learnt, expected)
    return drafted


def start(talk: Talk, players: tuple[Client, ReferenceLookup], slot: int) -> None:
    """Begin a request with both."""
    owner, references, tenant, corpora = talk.owner(), talk.references(), talk.tenant(), talk.corpora()
    arrays = [np.array(it, np.int32) for it in references]
    players[0].lookup.start(slot, owner=owner, references=arrays, tenant=tenant, corpora=corpora)
    players[1].start(slot, owner=owner, references=references, tenant=tenant, corpora=corpora)
    talk.length[slot] = 0
    if talk.rng.random() < 0.6:
        group, prompt_length = talk.rng.choice("xy"), talk.rng.randrange(9)
        for player in (players[0].lookup, players[1]):
            player.join(slot, group, prompt_length)


def load(talk: Talk, players: tuple[Client, ReferenceLookup]) -> None:
    """Load another corpus index in both."""
    segments = talk.segments(players[1].settings.max_n)
    players[0].lookup.load(segments)
    players[1].load(segments)


@pytest.mark.parametrize("corpus_indexes", [False, True], ids=["", "with corpus indexes that come and go"])
@pytest.mark.parametrize("trees", [False, True])
@given(seed=st.integers(0, 2**32), options=st.sampled_from(OPTIONS), draft_length=st.sampled_from([1, 4, 16]))
@settings(max_examples=25, deadline=None)
def test_it_drafts_what_the_reference_drafts(
    trees: bool, corpus_indexes: bool, seed: int, options: LookupSettings, draft_length: int
) -> None:
    talk = Talk(seed, slots=3, capacity=160)
    play(talk, both(3, 160, draft_length, options, trees=trees), 30, corpus_indexes=corpus_indexes)


@pytest.mark.parametrize("trees", [False, True])
def test_it_learns_what_the_reference_learns_and_forgets_likewise(trees: bool) -> None:
    options = OPTIONS[0]
    talk, players = Talk(7, slots=3, capacity=400), both(3, 400, 4, options, trees=trees)
    for tables in (players[0].lookup.tables, players[1].learnt):
        tables.votes *= 199.95  # one try more, and counts are halved
        tables.evidence *= 999.9
        tables.contexts *= 99.9
        tables.tokens[:] = 150, 199.9
    assert play(talk, players, 150) > 300
    learnt = players[0].lookup.tables
    for table in learnt.arrays:
        assert table[:, 1].min() < 0.6 * table[:, 1].max()


@pytest.mark.parametrize("trees", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_neither_the_order_of_rows_nor_anything_but_history_matters(trees: bool, seed: int) -> None:
    talk, shuffled = Talk(seed, slots=5, capacity=400), random.Random(seed)
    one, other = (Client(Lookup(5, 400, 6, OPTIONS[0], trees=trees), 6, trees) for _ in range(2))
    for player in (one, other):
        player.lookup.tables.contexts *= 98.0
        player.lookup.tables.tokens[:] = 150, 198.0
        for slot in range(5):
            player.lookup.start(slot, owner="a")
    for step in range(40):
        batch = talk.batch()
        order = shuffled.sample(range(len(batch[0])), len(batch[0]))
        slots, new, lengths, limits = ([column[k] for k in order] for column in batch)
        one.ingest(*batch[:3])
        other.ingest(slots, new, lengths)
        drafts = one.propose(batch[0], batch[3])
        assert other.propose(slots, limits) == [drafts[k] for k in order]
        if step % 10 == 9:
            for player in (one, other):
                player.lookup.remember(step % 5, "a", 0, talk.length[step % 5])
    for tables in zip(one.lookup.tables.arrays, other.lookup.tables.arrays, strict=True):
        assert np.array_equal(*tables)


@pytest.mark.parametrize("trees", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_nobody_is_drafted_what_only_others_were_reported(trees: bool, seed: int) -> None:
    rng, draft_length, names = random.Random(seed), 6, ["a", "b", "c"]
    client = Client(
        Lookup(1, 300, draft_length, LookupSettings(max_n=16, memory_tokens=256), trees=trees), draft_length, trees
    )
    seen: dict[str, set[int]] = {name: set() for name in names}
    songs = {name: [rng.choice([0, 1, 2, 50 + 50 * k + j]) for j in range(30)] for k, name in enumerate(names)}
    drafted = 0
    for _ in range(25):
        name, length = rng.choice(names), 0
        client.lookup.start(0, owner=name)
        for _ in range(rng.randrange(1, 12)):  # part of the song, then one's own way: past where the song ended
            at = rng.randrange(30)
            tokens = songs[name][at : at + 12] if rng.random() < 0.5 else [rng.randrange(3) for _ in range(6)]
            length += len(tokens)
            seen[name].update(tokens)
            client.ingest([0], [tokens], [length])
            (draft,) = client.propose([0], [draft_length])
            assert set(draft.ids) <= seen[name]
            assert POISON not in draft.ids
            assert NO_TEXT not in draft.ids
            assert all(0 < confidence < 1 for confidence in draft.confidences)
            assert all(above < k for k, above in enumerate(draft.parents))
            drafted += len(draft.ids)
        client.lookup.remember(0, name, 0, length)
    assert drafted > 100


@pytest.mark.parametrize("trees", [False, True])
def test_confidence_stays_below_one_however_often_drafts_are_right(trees: bool) -> None:
    client = Client(Lookup(1, 9000, 2, LookupSettings(max_n=4), trees=trees), 2, trees)
    client.lookup.start(0)
    certain = []
    for length in range(8, 9000, 2):
        client.ingest([0], [[5] * (8 if length == 8 else 2)], [length])
        (draft,) = client.propose([0], [2])
        certain += draft.confidences
        assert draft.ids == [5, 5]
        assert 0 < min(draft.confidences) <= max(draft.confidences) < 1
    assert certain[-1] > 0.999 > certain[0]


def test_a_text_that_repeats_itself_is_drafted_on() -> None:
    client = Client(Lookup(2, 100, 8, LookupSettings(), trees=False), 8, False)
    client.lookup.start(0, references=[np.array([7, 8, 9], np.int32)])
    client.ingest([0], [[1, 2, 3, 4, 1, 2, 3]], [7])
    (draft,) = client.propose([0], [8])
    assert draft.ids[:5] == [4, 1, 2, 3, 4]
    assert draft.sources == [0] * 8
    client.ingest([0], [[5, 7, 8]], [10])
    (draft,) = client.propose([0], [8])
    assert draft.ids[0] == 9
    assert draft.sources[0] == 1
    client.ingest([0], [[1, 2]], [2])  # the engine took all back
    assert client.propose([0], [8])[0].ids == []
    assert client.propose([1], [8])[0].ids == []


def test_references_that_leave_no_room_are_left_out_the_last_first() -> None:
    client = Client(Lookup(1, 20, 4, LookupSettings(), trees=False), 4, False)
    client.lookup.start(0, references=[np.arange(5, dtype=np.int32), np.arange(30, 40, dtype=np.int32)])
    assert client.lookup.texts.text[0, :10].tolist() == [0, 1, 2, 3, 4, -1, 30, 31, 32, -1]
    client.ingest([0], [[31, 32]], [2])
    assert client.propose([0], [4])[0].ids == []
    client.ingest([0], [[50] * 8], [10])
    client.ingest([0], [[51]], [11])  # no room: it keeps what it knows
    assert client.lookup.texts.lengths[0] == 20
