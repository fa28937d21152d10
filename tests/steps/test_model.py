"""Random schedules through the draft stage, held to a model of it in plain Python.

Requests start, skip steps, are preempted, finish and leave their slot to others; draft lengths, rooms and budgets
change; the proposer sometimes raises; the engine reports rows in any order, with padding, and with outdated bases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specplug.steps.handles import HostHandle
from specplug.types.request import Lifecycle
from specplug.types.step import Outcome
from tests.steps.tools import SLOTS, VOCAB, Recorder, Rig, drafts, int32, newest, work_on_tensors

DRAFT_LENGTH, MAX_CONSECUTIVE, COOLDOWN = 4, 2, 2
KINDS = {
    "device": {"learns": True},
    "device, not told of verdicts": {},  # steps without drafts then take a shorter way
    "thread": {"learns": True, "needs_host": True},
    "thread, newest tokens": {"learns": True, "needs_host": True, "incremental": True},
    "inline, newest tokens": {"learns": True, "needs_host": True, "inline": True, "incremental": True},
}
LEVELS = (1.0, 0.5, 0.25, 0.5)  # products of these are exact, so equals are equal


def continuation(text: list[int], limit: int) -> tuple[list[int], list[float]]:
    """Return the draft for a text: tokens, and a confidence for each."""
    places = range(min(limit, text[-1] % 6))
    return [(text[-1] + 1 + j) % VOCAB for j in places], [LEVELS[(text[-1] + j) % 4] for j in places]


@dataclass
class Known:
    """The model's state of one stay of a request in a slot."""

    handed: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    base_len: int = -1


class Breaker:
    """The circuit breaker, once more."""

    def __init__(self) -> None:
        self.off, self.in_a_row, self.trial = 0, 0, False

    def admits(self) -> bool:
        self.off -= self.off > 0
        return not self.off

    def ran(self, well: bool) -> None:
        if well:
            self.in_a_row, self.trial = 0, False
            return
        self.in_a_row += 1
        if self.trial or self.in_a_row >= MAX_CONSECUTIVE:
            self.off, self.trial = COOLDOWN + 1, True


def trimmed(rows: list[tuple[list[int], list[float]]], draft_length: int, budget: int | None) -> list[list[int]]:
    """Return the drafts that a budget leaves: likeliest first, then by column, then by row."""
    if budget is None or budget >= len(rows) * draft_length:
        return [ids for ids, _ in rows]
    places = []
    for row, (_, levels) in enumerate(rows):
        survival = 1.0
        for column, level in enumerate(levels):
            survival *= level
            places.append((-survival, column, row))
    kept = [row for _, _, row in sorted(places)[:budget]]
    return [ids[: kept.count(row)] for row, (ids, _) in enumerate(rows)]


class Schedule:
    """One random run: every action is applied to the draft stage and to the model."""

    def __init__(self, data, caps) -> None:
        self.pick = data.draw
        self.proposer = Recorder(self.write, **caps)
        self.rig = Rig({"only": self.proposer}, max_consecutive=MAX_CONSECUTIVE, cooldown_steps=COOLDOWN)
        self.known: dict[str, Known] = {}
        self.breaker = Breaker()
        self.waiting: dict[str, list[int]] = {}
        self.joined = 0
        self.totals = {"proposed": 0, "verified": 0, "accepted": 0, "emitted": 0}

    def write(self, batch, limits, draft) -> None:
        """Draft from what was handed over so far."""
        keys = zip(batch.slots.tolist(), batch.generations.tolist(), strict=True)
        for row, (key, limit) in enumerate(zip(keys, limits.tolist(), strict=True)):
            draft.set_row(row, *continuation(self.proposer.texts[key], limit))

    def wait(self) -> None:
        """Let a proposer's own thread do what is queued."""
        [handle] = self.rig.handles
        if isinstance(handle, HostHandle):
            handle._worker.submit(lambda: None).result()

    def maybe(self, one_in: int = 3) -> bool:
        return self.pick(st.integers(1, one_in)) == 1

    def tokens(self, low: int, high: int) -> list[int]:
        return self.pick(st.lists(st.integers(0, VOCAB - 1), min_size=low, max_size=high))

    def some(self) -> list[str]:
        """Return some of the running requests in any order."""
        names = self.pick(st.permutations(list(self.rig.occupants)))
        return names[: self.pick(st.integers(0, len(names)))] if self.maybe() else names

    def start_and_end(self) -> None:
        for name in list(self.rig.occupants):
            if self.maybe(5):
                kind = self.pick(st.sampled_from([Lifecycle.FINISHED, Lifecycle.ABORTED, Lifecycle.PREEMPTED]))
                text = self.rig.leave(name, kind)
                del self.known[name]
                if kind is Lifecycle.PREEMPTED:
                    self.waiting[name] = text
        while self.maybe(2) and len(self.rig.occupants) < SLOTS:
            free = set(range(SLOTS)) - {occupant.slot for occupant in self.rig.occupants.values()}
            slot = self.pick(st.sampled_from(sorted(free)))
            if self.waiting and self.maybe(2):
                name, text = self.waiting.popitem()
                kind = Lifecycle.RESUMED
            else:
                self.joined += 1
                name, text, kind = f"r{self.joined}", self.tokens(1, 5), Lifecycle.STARTED
            self.rig.start(name, text, slot=slot, kind=kind)
            self.known[name] = Known()

    def draft(self) -> None:
        names = self.some()
        if not names:
            return
        draft_length, count = self.pick(st.integers(0, DRAFT_LENGTH)), len(names)
        budget = self.pick(st.none() | st.integers(-1, DRAFT_LENGTH * SLOTS))
        room = self.pick(st.lists(st.integers(0, 7), min_size=count, max_size=count))
        sampled = self.pick(st.lists(st.booleans(), min_size=count, max_size=count))
        self.proposer.fails = {"propose"} if self.maybe() else set()
        found = self.rig.draft(draft_length, names, budget=budget, room=room, sampled=sampled)

        admitted = bool(draft_length) and self.breaker.admits()
        failed = bool(self.proposer.fails)
        if admitted:
            self.breaker.ran(not failed)
            self.hand_over(names)
            if failed and self.proposer.caps.incremental:  # it gets everything again, also of rows that were not here
                self.known = {name: replace(known, handed=[]) for name, known in self.known.items()}
        rows = []
        for name, one_room, is_sampled in zip(names, room, sampled, strict=True):
            limit = min(draft_length, max(0, one_room - 1)) if admitted and not failed and is_sampled else 0
            rows.append(continuation(self.rig.occupants[name].tokens, limit))
        expected = trimmed(rows, draft_length, None if budget is None else max(0, budget))
        assert drafts(found) == expected
        for name, ids in zip(names, expected, strict=True):
            self.known[name].draft, self.known[name].base_len = ids, len(self.rig.occupants[name].tokens)

    def hand_over(self, names: list[str]) -> None:
        """Check that a step brought each row's tokens since it was there last."""
        expected = {}
        for name in names:
            occupant, known = self.rig.occupants[name], self.known[name]
            expected[occupant.slot, occupant.generation] = occupant.tokens[len(known.handed) :]
            known.handed = list(occupant.tokens)
        assert self.proposer.handed.pop() == expected
        assert not self.proposer.handed

    def verify(self) -> None:
        names = self.some()
        if not names:
            return
        reports, expected, seen, emitted = [], [], [], []
        for name in names:
            accepted = self.pick(st.integers(0, DRAFT_LENGTH))
            verified = self.pick(st.integers(accepted, DRAFT_LENGTH))
            text, known = self.rig.occupants[name].tokens, self.known[name]
            if self.maybe(6):
                text.append(0)  # a token that no report mentions: the base no longer holds
            holds = known.base_len == len(text)
            new = self.tokens(accepted + 1, accepted + 1) if accepted or not self.maybe(6) else []
            text.extend(new)
            emitted.append(new)
            proposed = len(known.draft) if holds else 0
            reports.append((verified, accepted, len(new)))
            expected.append((proposed, min(verified, proposed), min(accepted, verified, proposed), len(new)))
            seen.append(known.draft if holds else [])
            known.draft, known.base_len = [], -1
        verdict = self.rig.stage.observe(self.rig.batch(names), Outcome(*map(int32, zip(*reports, strict=True))))

        columns = {name: getattr(verdict, name).tolist() for name in self.totals}
        assert list(zip(*columns.values(), strict=True)) == expected
        for name, column in columns.items():
            self.totals[name] += sum(column)
        if (
            self.proposer.caps.learns and self.breaker.off <= 1
        ):  # at 1 the cool-down is over, and the next step is its trial
            self.wait()
            batch, draft, _ = self.proposer.observed.pop()
            assert (drafts(draft), batch.request_ids) == (seen, tuple(names))
            if self.proposer.caps.incremental:
                assert [newest(batch, row) for row in range(batch.batch_size)] == emitted
        assert not self.proposer.observed


@pytest.fixture(params=["arrays", "tensors"])
def form(request, monkeypatch):
    """Let the stage work on arrays, as on a CPU, or on tensors, as on other devices."""
    if request.param == "tensors":
        work_on_tensors(monkeypatch)


@pytest.mark.usefixtures("form")
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(list(KINDS)), st.data())
def test_the_draft_stage_is_what_the_model_says(kind, data):
    schedule = Schedule(data, KINDS[kind])
    for _ in range(data.draw(st.integers(1, 8), label="steps")):
        schedule.start_and_end()
        schedule.draft()
        schedule.start_and_end()
        schedule.verify()
    total = schedule.rig.metrics.snapshot().total
    assert {name: getattr(total, name) for name in schedule.totals} == schedule.totals
    assert set(schedule.rig.faults.get("only", {})) <= {"raised", "switched off", "came back"}
    schedule.rig.stage.close()
