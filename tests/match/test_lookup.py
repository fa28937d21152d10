"""Lookup drafts what its plain reference drafts, to the last bit, whatever happens to its texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from tests.match.driver import Client, Talk, both
from tests.match.reference.lookup import ReferenceLookup

OPTIONS = [
    LookupSettings(max_n=64, memory_tokens=1024),
    LookupSettings(max_n=3, min_survival=1e-5, memory_tokens=256),
    LookupSettings(min_n=1, max_n=20, memory_tokens=256),
    LookupSettings(min_n=2, max_n=5, min_survival=0.05, memory_tokens=0),
]


def play(
    talk: Talk,
    players: tuple[Client, ReferenceLookup],
    steps: int,
    *,
    corpus_indexes: bool = False,
    engine_tokens: int = 0,
) -> int:
    """Let both live through the same; return how many tokens were drafted.

    With `engine_tokens` the engine drafts so many before, sometimes as lookup does.
    """
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
        texts = [plain.rows[slot].text for slot in slots]
        engine_ids = [talk.engine_draft(text, engine_tokens) for text in texts] if engine_tokens else None
        got, want = client.propose(slots, limits, engine_ids), plain.propose(slots, limits, engine_ids)
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
@settings(max_examples=25)
def test_it_drafts_what_the_reference_drafts(
    trees: bool, corpus_indexes: bool, seed: int, options: LookupSettings, draft_length: int
) -> None:
    talk = Talk(seed, slots=3, capacity=160)
    play(talk, both(3, 160, draft_length, options, trees=trees), 30, corpus_indexes=corpus_indexes)


@given(seed=st.integers(0, 2**32), options=st.sampled_from(OPTIONS), engine_tokens=st.integers(1, 5))
@settings(max_examples=25)
def test_it_continues_the_engines_draft_as_the_reference_does(
    seed: int, options: LookupSettings, engine_tokens: int
) -> None:
    talk, players = (
        Talk(seed, slots=3, capacity=160),
        both(3, 160, 8, options, trees=False, engine_tokens=engine_tokens),
    )
    play(talk, players, 30, corpus_indexes=seed % 2 == 0, engine_tokens=engine_tokens)
    counts = players[0].lookup.rows.engine_counts
    assert counts[-1].tolist() == players[1].engine.counts


def test_which_draft_stands_is_learnt_from_what_was_right() -> None:
    client = Client(Lookup(1, 400, 8, LookupSettings(), trees=False, engine_tokens=2, engine_source=3), 8, False)
    client.lookup.start(0)
    text, drafts = [1, 2, 3, 4, 5, 6, 7, 8] * 12, []
    client.ingest([0], [text[:8]], [8])
    for k in range(9, 60):
        client.ingest([0], [[text[k - 1]]], [k])
        drafts += client.propose([0], [8], [text[k : k + 2] if k < 12 else [99, 98]])
    assert drafts[0].ids == text[9:17]
    assert drafts[0].sources == [3, 3, 0, 0, 0, 0, 0, 0]  # the engine's tokens, and what lookup knows to follow them
    assert drafts[3].ids[:2] == [99, 98]
    assert drafts[-1].ids == text[59:67]
    assert drafts[-1].sources == [0] * 8  # the engine's tokens were wrong too often


@pytest.mark.parametrize("trees", [False, True])
def test_it_learns_what_the_reference_learns_and_forgets_likewise(trees: bool) -> None:
    options = OPTIONS[0]
    talk, players = Talk(7, slots=3, capacity=400), both(3, 400, 4, options, trees=trees)
    for tables in (players[0].lookup.tables, players[1].learnt):
        tables.votes *= 199.95  # of 20 tries: one more, and counts are halved
        tables.evidence *= 249.97
        tables.contexts[:] = 100, 199.9
        tables.tokens[:] = 150, 199.9
    assert play(talk, players, 150) > 300
    learnt = players[0].lookup.tables
    for table in learnt.arrays:
        assert table[:, 1].min() < 0.6 * table[:, 1].max()


def test_confidence_stays_below_one_however_often_drafts_are_right() -> None:
    client = Client(Lookup(1, 9000, 2, LookupSettings(max_n=4), trees=True), 2, trees=True)
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
