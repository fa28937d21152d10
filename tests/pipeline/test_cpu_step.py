"""Compiled steps on the CPU give the drafts, counts, faults and calls of the draft stage that they stand in for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.faults import FaultGuard
from specplug.interfaces import Proposer, Trimmer
from specplug.metrics import SpecMetrics
from specplug.pipeline.cpu.step import CpuStep
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.handles import make_handle
from specplug.plugins.specs import ProposerSpec
from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.slots import NO_CAP
from specplug.runtime.stops import StopDetector
from specplug.trim import SurvivalTrimmer
from specplug.types.caps import EngineCaps, ProposerCaps
from specplug.types.draft import Draft
from specplug.types.plan import Price, StepPlan
from specplug.types.request import Request, RequestOptions
from specplug.types.verdict import Outcome

CPU = torch.device("cpu")
SLOTS, LENGTH, VOCAB, DRAFT_LENGTH = 4, 40, 8, 3
STOP = 5
INLINE = ProposerCaps(needs_host=True, inline=True)

VALID = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5)
TOKENS = st.one_of(VALID, VALID, st.lists(st.sampled_from([-1, 0, 1, VOCAB]), max_size=5))
LEVELS = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0, float("nan"), float("inf")])
DEEDS = st.sampled_from(["", "", "", "", "raise", "resize"])
SCRIPT = st.lists(st.tuples(TOKENS, LEVELS, st.sampled_from([-3, 0, 0, 1, 7]), DEEDS), min_size=1, max_size=6)


class Scripted(Proposer):
    """Drafts by a script, wrong in every way, and notes what it is handed."""

    sources = ("one", "two")

    def __init__(self, script: list[Any]) -> None:
        self._script, self._steps = script, 0
        self.log: list[Any] = []

    def ingest(self, batch):
        columns = (batch.slots, batch.generations, batch.rows, batch.lengths, batch.num_new, batch.sampled, batch.room)
        self.log.append(["ingest", batch.reset_slots, *[column.tolist() for column in (*columns, batch.grammar)]])

    def propose(self, batch, limits, draft):
        ids, level, source, deed = self._script[self._steps % len(self._script)]
        self._steps += 1
        self.log.append(["propose", limits.tolist(), draft.base_len.tolist(), *shown(draft)])
        for row in range(batch.batch_size):
            count = min(len(ids), draft.draft_length)
            for place in range(count):
                draft.token_ids[row, place] = ids[place]
                draft.confidence[row, place] = level
                draft.source[row, place] = source + place
            draft.lengths[row] = count
        if deed == "raise":
            raise ZeroDivisionError("planted")
        if deed == "resize":
            draft.token_ids.resize_(1, 1)


class CutsAlways(SurvivalTrimmer):
    """Trims every step."""

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        return True


def shown(draft: Draft) -> list[Any]:
    return [getattr(draft, name).tolist() for name in ("token_ids", "lengths", "confidence", "source", "base_len")]


class Engine:
    """Requests in slots of a draft stage, stepped by the stage itself or by compiled functions."""

    def __init__(self, proposer: Any, trimmer: Trimmer, caps: ProposerCaps = INLINE) -> None:
        self.proposer = proposer
        spec = ProposerSpec(name="scripted", factory=lambda _: self.proposer, summary="", caps=caps)
        handle = make_handle(spec, self.proposer, None, CPU)
        self.metrics = SpecMetrics(handle.sources, DRAFT_LENGTH)
        guards = [FaultGuard(name, max_consecutive=2, cooldown_steps=1, sink=self.metrics.fault) for name in "pt"]
        self.stage = DraftStage(
            [handle],
            guards[:1],
            trimmer,
            guards[1],
            caps=EngineCaps(DRAFT_LENGTH),
            max_slots=SLOTS,
            vocab_size=VOCAB,
            device=CPU,
            metrics=self.metrics,
        )
        self.allocator = SlotAllocator(SLOTS, CPU, self.stage.on_event)
        self.stops = StopDetector(SLOTS, DRAFT_LENGTH, CPU)
        self.table = torch.full((SLOTS, LENGTH), -7, dtype=torch.int32)
        self.compiled = CpuStep(self.stage, self.allocator.slots.table, self.stops.stopped, VOCAB)
        self.compiled.columns.caps[:] = NO_CAP

    def start(self, name: str, end: int, cap: int | None) -> None:
        request = Request(name, prompt_length=0, max_tokens=end, options=RequestOptions(num_speculative_tokens=cap))
        self.allocator.start(RunningRequest(request, end, stop_ids=(STOP,)))

    def step(self, rows: list[tuple[str, list[int], int, int]], plan: StepPlan, *, compiled: bool) -> list[Any]:
        """Take a step.  `rows`: name, tokens that the step emitted, tokens in all, and draft tokens verified."""
        columns, slots = self.compiled.columns, [self.allocator.slot_of(name) for name, *_ in rows]
        size, table_rows = len(rows), [(slot + 1) % SLOTS for slot in slots]
        for place, (_, emitted, length, verified) in enumerate(rows):
            self.table[table_rows[place], length - len(emitted) : length] = torch.tensor(emitted, dtype=torch.int32)
            columns.lengths[place], columns.emitted[place], columns.verified[place] = length, len(emitted), verified
        columns.slots[:size], columns.table_rows[:size] = slots, table_rows
        batch = columns.batch(size, self.table, VOCAB)
        resets = self.allocator.slots.take_resets()
        batch = type(batch)(**{it: getattr(batch, it) for it in batch.__slots__} | {"reset_slots": resets})
        self.allocator.slots.flush()
        if compiled:
            assert self.compiled.applies
            self.compiled.take(batch, self.table.numpy(), plan)
            draft = self.stage.runners[0].buffer.view(size, plan.draft_length)
            cut = zip(draft.token_ids.tolist(), draft.lengths.tolist(), strict=True)
            assert self.compiled.lists(size, plan.draft_length) == [ids[:count] for ids, count in cut]
            return shown(draft)
        self.compiled.describe(size)
        facts, emitted = self.allocator.slots.rows(batch.slots), columns.tensor("emitted", size).clone()
        after = self.stops.after(batch.tokens, batch.rows, batch.slots, batch.lengths, emitted, facts)
        verified = torch.where(emitted > 0, columns.tensor("verified", size), 0)
        self.stage.observe(batch, Outcome(verified, (emitted - 1).clamp(min=0), emitted, after_stop=after))
        return shown(self.stage.trim(batch, self.stage.propose(batch, plan.draft_length, facts.caps), plan))


class Shortens(CutsAlways):
    """Has no C function of its own, and must not be given the one that it inherits."""

    def trim(self, draft, limits):
        return super().trim(draft.keep(torch.arange(draft.draft_length) < 1), limits)


class Raises(CutsAlways):
    """Fails at every other call."""

    fails = False

    def trim(self, draft, limits):
        self.fails = not self.fails
        if self.fails:
            raise ZeroDivisionError("planted")
        return super().trim(draft, limits)


TRIMMERS = st.sampled_from([SurvivalTrimmer, CutsAlways, Shortens, Raises])


def play(data: st.DataObject, plain: Engine, fast: Engine, *, mixed: bool) -> None:
    """Run one schedule on both engines; `fast` takes all of its steps, or any of them, in compiled functions."""
    lengths: dict[str, int] = {}
    for number in range(data.draw(st.integers(1, 12))):
        if len(lengths) < SLOTS and data.draw(st.booleans()):
            name, end, cap = f"r{number}", data.draw(st.integers(4, 24)), data.draw(st.sampled_from([None, None, 1, 0]))
            for engine in (plain, fast):
                engine.start(name, end, cap)
            lengths[name] = 0
        if lengths and data.draw(st.integers(0, 5)) == 0:
            gone = data.draw(st.sampled_from(sorted(lengths)))
            for engine in (plain, fast):
                engine.allocator.finish(gone, aborted=False)
            del lengths[gone]
        rows = []
        for name in data.draw(st.permutations(sorted(lengths))):
            if lengths[name] + DRAFT_LENGTH + 2 >= LENGTH or data.draw(st.integers(0, 4)) == 0:
                continue
            count = data.draw(st.integers(1, DRAFT_LENGTH + 1)) if lengths[name] else data.draw(st.integers(0, 1))
            new = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=count, max_size=count))
            prompt = 0 if lengths[name] else data.draw(st.integers(1, 5))
            lengths[name] += prompt + count
            rows.append((name, new, lengths[name], data.draw(st.integers(0, DRAFT_LENGTH))))
        if not rows:
            continue
        budget = data.draw(st.sampled_from([None, None, 0, 2, 99]))
        plan = StepPlan(
            data.draw(st.integers(1, DRAFT_LENGTH)), budget, prices=data.draw(st.sampled_from([(), (Price(0.4),)]))
        )
        expected = plain.step(rows, plan, compiled=False)
        found = fast.step(rows, plan, compiled=not mixed or data.draw(st.booleans()))
        assert repr(found) == repr(expected)
        assert fast.metrics.snapshot() == plain.metrics.snapshot()
    assert np.array_equal(fast.stops.stopped, plain.stops.stopped)
    assert torch.equal(fast.stage.runners[0].ingested, plain.stage.runners[0].ingested)


@settings(max_examples=250, deadline=None)
@given(st.data(), SCRIPT, st.booleans(), TRIMMERS)
def test_steps_equal_those_of_the_stage(data, script, mixed, trimmer):
    plain, fast = [Engine(Scripted(script), trimmer()) for _ in range(2)]
    play(data, plain, fast, mixed=mixed)
    assert repr(fast.proposer.log) == repr(plain.proposer.log)
