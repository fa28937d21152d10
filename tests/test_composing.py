"""Proposers made of others: what is joined, how parts are run and contained, and who is credited."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import specplug.plugins.builtin
import specplug_fixed.plugin
from specplug.assembly import build_draft_stage
from specplug.composing import ComposedProposer, splice
from specplug.errors import ContractError, PluginError
from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import Settings
from specplug.testing.batches import make_batch
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.draft import NO_TOKEN
from specplug.types.request import EngineEvent, Lifecycle, Request, RequestEvent
from specplug.types.step import Draft, Outcome, StepPlan
from tests.plugins.planted import registry_of
from tests.steps.tools import Recorder, int32, rows

DRAFT_LENGTH = 4
CHAINS = st.lists(st.lists(st.integers(0, 1), max_size=DRAFT_LENGTH), min_size=2, max_size=2)


def draft_of(chains: list[list[int]], source: int) -> Draft:
    draft = Draft.allocate(len(chains), DRAFT_LENGTH, sources=("one", "two"))
    for row, ids in enumerate(chains):
        draft.set_row(row, ids, 0.25 + source / 2, source=source)
    return draft


@given(CHAINS, CHAINS)
def test_splice_appends_what_continues_a_row_and_leaves_the_others(first, second):
    draft = draft_of(first, 0)
    splice(draft, draft_of(second, 1))
    draft.validate()
    for row, (mine, theirs) in enumerate(zip(first, second, strict=True)):
        tail = theirs[len(mine) :] if theirs[: len(mine)] == mine else []
        ids = mine + tail
        count = len(mine) + len(tail)
        pad = DRAFT_LENGTH - count
        assert draft.token_ids[row].tolist() == ids + [NO_TOKEN] * pad
        assert draft.source[row].tolist() == [0] * len(mine) + [1] * len(tail) + [-1] * pad
        assert draft.confidence[row].tolist() == [0.25] * len(mine) + [0.75] * len(tail) + [0.0] * pad
    assert draft.lengths.tolist() == [int((row >= 0).sum()) for row in draft.token_ids]


class Status(Recorder):
    """A part that reports something."""

    def status(self) -> dict[str, int]:
        return {"steps": len(self.handed)}


PARTS = {
    "first": (lambda: Recorder(rows([5, 6], [5, 6, 7], []), learns=True, sources=("own", "other")), ProposerCaps()),
    "second": (lambda: Status(rows([5, 6, 9, 9], [4, 4, 4, 4], [8]), learns=True), ProposerCaps(needs_host=True)),
}


LEARNS = ProposerCaps(learns=True)


class Made:
    """A server with composed proposers over recording parts."""

    def __init__(self, proposer: str = "joined", **settings: object) -> None:
        self.parts: dict[str, Recorder] = {}
        joined = {"joined": ("first", "second"), "nested": ("joined",), "a": ("b",), "b": ("a",), "odd": ("nobody",)}
        specs = [self._spec(name, partial(self._part, name), replace(PARTS[name][1], learns=True)) for name in PARTS]
        specs += [self._spec(name, partial(ComposedProposer, names=parts)) for name, parts in joined.items()]
        registry = registry_of(specplug.plugins.builtin, specplug_fixed.plugin, proposers=specs)
        faults = {"host_deadline_ms": None, "max_consecutive": 100, **settings.pop("faults", {})}
        self.context = PluginContext(EngineCaps(DRAFT_LENGTH), vocab_size=16, max_slots=3, max_length=32)
        chosen = Settings(proposer=proposer, policy="fixed", faults=faults, **settings)
        self.stage = build_draft_stage(chosen, registry, self.context)
        self.metrics = self.stage.metrics

    def _spec(self, name: str, factory: Any, caps: ProposerCaps = LEARNS) -> ProposerSpec:
        return ProposerSpec(name=name, factory=factory, summary="", caps=caps)

    def _part(self, name: str, context: PluginContext) -> Recorder:
        self.parts[name] = PARTS[name][0]()
        return self.parts[name]

    def draft(self, length: int = 3, draft_length: int = DRAFT_LENGTH, **columns) -> Draft:
        self.batch = make_batch([range(length)] * 3, vocab_size=16, generations=[0, 0, 0], **columns)
        draft = self.stage.propose(self.batch, draft_length)
        return self.stage.trim(self.batch, draft, StepPlan(draft_length))

    def verify(self, accepted: list[int]) -> None:
        counts = int32(accepted)
        after = replace(self.batch, lengths=self.batch.lengths + counts + 1)
        self.stage.observe(after, Outcome(int32([DRAFT_LENGTH] * 3), counts, counts + 1))


def ids(draft: Draft) -> list[list[int]]:
    return [row[:length] for row, length in zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)]


JOINED = [[5, 6, 9, 9], [5, 6, 7], [8]]


@pytest.fixture
def made():
    held: list[Made] = []

    def make(*args, **settings) -> Made:
        held.append(Made(*args, **settings))
        return held[-1]

    yield make
    for each in held:
        each.stage.close()


@pytest.mark.parametrize("proposer", ["joined", "nested"])
def test_every_token_is_counted_for_the_part_that_drafted_it(made, proposer):
    it = made(proposer)
    assert ids(it.draft()) == JOINED
    names = {"joined": "joined", "nested": "nested/joined"}[proposer]
    own, other, second = [f"{names}/{source}" for source in ("first/own", "first/other", "second")]
    assert it.stage.sources == (own, other, second)
    it.verify([3, 0, 1])
    counts = it.metrics.snapshot().by_source
    assert [(counts[name].proposed, counts[name].accepted) for name in (own, other, second)] == [(5, 2), (0, 0), (3, 2)]
    assert [counts[name].target_steps for name in (own, other, second)] == [2, 0, 1]


@pytest.mark.parametrize("proposer", ["joined", "nested"])
def test_parts_observe_their_own_sources_and_hear_every_event(made, proposer):
    it = made(proposer)
    it.stage.on_event(RequestEvent(Lifecycle.STARTED, Request("r", 3, 9), 0, 0))
    it.stage.on_event(EngineEvent("cache flushed"))
    it.draft(reset_slots=(0, 1, 2))
    it.verify([3, 0, 1])
    it.stage.close()
    first = it.parts["first"]
    second = it.parts["second"]
    [(batch, seen, verdict)] = first.observed
    [(_, other, _)] = second.observed
    assert seen.source.tolist() == [[0, 0, -1, -1], [0, 0, 0, -1], [-1] * 4]
    assert other.source.tolist() == [[-1, -1, 0, 0], [-1] * 4, [0, -1, -1, -1]]
    assert (verdict.accepted.tolist(), batch.num_new.tolist()) == ([3, 0, 1], [4, 1, 2])
    for part in (first, second):
        assert len(part.events) == 2
        assert part.calls.count("close") == 1


def test_a_part_that_fails_costs_its_own_drafts(made):
    it = made()
    it.parts["first"].fails = {"propose"}
    assert ids(it.draft()) == [[5, 6, 9, 9], [4, 4, 4, 4], [8]]
    it.parts["first"].fails = set()
    it.parts["second"].fails = {"propose", "observe", "on_event"}
    assert ids(it.draft(4)) == [[5, 6], [5, 6, 7], []]
    it.verify([1, 1, 0])
    it.draft(6)
    faults = it.metrics.snapshot().faults
    assert set(faults) == {"joined/first", "joined/second"}
    assert faults["joined/first"] == {"raised": 1}


def test_a_part_that_is_switched_off_catches_up(made):
    it = made(faults={"max_consecutive": 1, "cooldown_steps": 2})
    second = it.parts["second"]
    it.draft(3)
    second.fails = {"propose"}
    it.draft(4)
    second.fails = set()
    for length in (5, 6):
        assert ids(it.draft(length)) == [[5, 6], [5, 6, 7], []]
    assert ids(it.draft(7)) == JOINED
    assert [handed[0, 0] for handed in second.handed] == [[0, 1, 2], [3], [4, 5, 6]]
    assert [handed[0, 0] for handed in it.parts["first"].handed] == [[0, 1, 2], [3], [4], [5], [6]]


def test_the_parts_can_ingest_without_drafting(made):
    it = made()
    it.stage.ingest(make_batch([range(3)] * 3, vocab_size=16, reset_slots=(0, 1, 2)))
    assert [len(part.handed) for part in it.parts.values()] == [1, 1]
    assert not any(part.limits for part in it.parts.values())


def test_who_asks_it_to_ingest_and_to_propose_apart_hands_nothing_twice(made):
    it = made()
    batch = make_batch([range(3)] * 3, vocab_size=16, reset_slots=(0, 1, 2))
    composed = it.stage.proposers["joined"]
    draft = Draft.allocate(3, DRAFT_LENGTH)
    composed.ingest(batch)
    composed.propose(batch, int32([DRAFT_LENGTH] * 3), draft)
    assert ids(draft) == JOINED
    for part in it.parts.values():
        assert part.resets == [(0, 1, 2), ()]
        assert [handed[0, 0] for handed in part.handed] == [[0, 1, 2], []]


def test_it_tells_what_its_parts_tell(made):
    it = made()
    it.draft()
    assert it.stage.proposers["joined"].status() == {"second": {"steps": 1}}


@pytest.mark.parametrize(
    ("proposer", "message"),
    [
        ("a", "proposer 'a' is made of itself; found 'a' made of 'b' made of 'a'"),
        ("odd", "unknown proposer 'nobody'"),
    ],
)
def test_what_cannot_be_composed_is_refused_by_name(made, proposer, message):
    with pytest.raises(PluginError, match=message):
        made(proposer)


def test_a_context_of_ones_own_has_no_parts():
    with pytest.raises(ContractError, match=r"'ngram' cannot be built as a part here; .*specplug.testing"):
        PluginContext(EngineCaps(4)).part("ngram")


def test_nothing_is_read_back():
    """Tensors on the meta device hold no values, so code that needs one raises."""
    draft, other = (Draft.allocate(2, DRAFT_LENGTH, device="meta") for _ in range(2))
    splice(draft, other)
    assert draft.lengths.dtype is torch.int32
