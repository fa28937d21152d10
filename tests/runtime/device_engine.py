"""A toy engine with a scripted proposer, whose draft stage takes its steps itself, or around which kernels do."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from random import Random
from typing import Any

import torch

from specplug.faults import FaultGuard
from specplug.interfaces import Proposer, Trimmer
from specplug.metrics import SpecMetrics
from specplug.pipeline.device.columns import Launches
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.handles import make_handle
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.plugins.specs import ProposerSpec
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stops import StopDetector
from specplug.trim import SurvivalTrimmer
from specplug.types.caps import Distribution, EngineCaps, ProposerCaps
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from tests.pipeline.transfers import view_of
from tests.runtime import stream_engine

SLOTS, VOCAB, DRAFT_LENGTH = stream_engine.SLOTS, stream_engine.VOCAB, stream_engine.DRAFT_LENGTH
VERDICT = ("proposed", "verified", "accepted", "cut_by_grammar", "emitted", "after_stop")


def random_script(random: Random) -> list[Any]:
    """Return ids, confidence, source and deed of steps, most of them sound."""
    script = []
    for _ in range(random.randint(1, 8)):
        ids = [random.randrange(VOCAB) for _ in range(random.randint(1, 5))]
        if random.randint(0, 3) == 0:
            ids[random.randrange(len(ids))] = random.choice([-1, VOCAB])
        level = random.choice([0.0, 0.5, 0.9, 1.0, 2.0, -1.0, nan, inf])
        deed = random.choice(["", "", "", "", "", "", "raise", "resize"])
        script.append((ids, level, random.choice([-3, 0, 0, 1, 7]), deed))
    return script


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


class Learning(Scripted):
    """Notes the verdicts that it is handed, too; some of its drafts are too long."""

    def propose(self, batch, limits, draft):
        super().propose(batch, limits, draft)
        if self._steps % 3 == 0:
            draft.lengths.add_(7)
        if draft.draft_logits is not None:
            assert draft.drawn.all(), "the initial value"
            draft.drawn[:, 1::2] = False
            draft.draft_logits[:] = (batch.lengths * self._steps)[:, None, None]

    def observe(self, batch, draft, verdict):
        self.log.append(["observe", batch.num_new.tolist(), batch.lengths.tolist(), batch.temperature.tolist()])
        self.log.append([*shown(draft), *[getattr(verdict, name).tolist() for name in VERDICT]])


class Watching(CutsAlways):
    """Trims every step, learns, and notes what it is handed."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def trim(self, draft, limits):
        self.log.append([*shown(draft), limits.decoding.tolist(), limits.prices.tolist()])
        return super().trim(draft, limits)

    def observe(self, batch, draft, verdict):
        self.log.append([*shown(draft), draft.sources, verdict.accepted.tolist(), batch.reset_slots])


def stage_of(
    proposer: Learning,
    trimmer: Trimmer,
    draft_length: int,
    *,
    learns: bool,
    device: torch.device,
    distribution: Distribution = Distribution.ONE_HOT,
) -> DraftStage:
    """Return a draft stage of a proposer, which may learn, and state a distribution."""
    caps = ProposerCaps(learns=learns, incremental=learns, distribution=distribution)
    spec = ProposerSpec(name="scripted", factory=lambda _: proposer, summary="", caps=caps)
    handle = make_handle(spec, proposer, None, device)
    metrics = SpecMetrics([*handle.sources, "another"], draft_length, device)
    guards = [FaultGuard(name, max_consecutive=2, cooldown_steps=1, sink=metrics.fault) for name in "pt"]
    return DraftStage(
        [handle],
        guards[:1],
        trimmer,
        guards[1],
        caps=EngineCaps(draft_length, draft_input=distribution),
        max_slots=SLOTS,
        vocab_size=VOCAB,
        device=device,
        metrics=metrics,
    )


class Engine(stream_engine.Engine):
    """Requests in slots.

    Args:
        script: of its proposer.
        launches: the kernels; None for none.
        learns: whether the proposer learns.
        trims: whether the policy cuts every step, and learns.
        device: of everything.
        distribution: that its proposer states.

    Attributes:
        by_kernels: decides, for each step, whether kernels take it.
        states: after each step, what the stage holds.
        stated: after each step, the logits of the tokens that were drawn.
    """

    def __init__(
        self,
        script: list[Any],
        launches: Launches | None,
        *,
        learns: bool,
        trims: bool,
        device: torch.device,
        distribution: Distribution = Distribution.ONE_HOT,
    ) -> None:
        self.proposer, self.trimmer = Learning(script), Watching() if trims else SurvivalTrimmer()
        given = {"learns": learns, "device": device, "distribution": distribution}
        self.stage = stage_of(self.proposer, self.trimmer, DRAFT_LENGTH, **given)
        self.allocator = SlotAllocator(SLOTS, device, lambda event: self.stage.on_event(event))
        self.slot_of: dict[str, int] = {}
        self.allocator.engine_slot = self.slot_of.__getitem__
        self.stops = StopDetector(SLOTS, DRAFT_LENGTH, device)
        self._allocate(device)
        self._layout = Random(len(script))
        self.texts = view_of(self._layout, self.texts)
        self.by_kernels: Callable[[], bool] = lambda: True
        self.states: list[Any] = []
        self.stated: list[Any] = []
        self._by_device: DeviceSteps | None = None
        if launches is not None:
            assert DeviceSteps.applies(self.stage)
            like = self._rows(*torch.zeros(3, 1, dtype=torch.int32, device=device)), self._outputs(1), self.last
            self._by_device = DeviceSteps(self.stage, self.allocator.slots, self.stops, VOCAB, launches, like=like)

    def step(self, rows: list[tuple[str, int, int]], plan: StepPlan) -> stream_engine.Step:
        """Take a step of rows (name, tokens emitted, draft tokens rejected); return drafts."""
        if self._by_device is not None and self.by_kernels():
            found = self._step_by_kernels(self._by_device, rows, plan)
        else:
            found = super().step(rows, plan)
        self.states.append(self._state([name for name, *_ in rows], plan.draft_length))
        return found

    def _step_by_kernels(
        self, steps: DeviceSteps, rows: list[tuple[str, int, int]], plan: StepPlan
    ) -> stream_engine.Step:
        names, size = [name for name, *_ in rows], len(rows)
        columns = [self.slot_of[name] for name in names], *([row[k] for row in rows] for k in (1, 2))
        slots, emitted, rejected = (self._view(torch.tensor(it, device=self.device)) for it in columns)
        out = self._view(torch.full((size, DRAFT_LENGTH), -9, device=self.device))
        confidence = view_of(self._layout, torch.full((size, DRAFT_LENGTH), -9.0, device=self.device))
        engine = EngineRows(slots, self._view(self.lengths), self.texts, emitted, rejected)
        heat = view_of(self._layout, torch.zeros(SLOTS, device=self.device))
        facts = self._facts_of(names)
        draft = steps.take(facts, engine, DraftOutputs(out, confidence), self._view(self.last), heat, plan)
        if facts.names:
            self.note(draft)
        return out, confidence

    def _view(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return integers as an engine may hold them: in either width, anywhere in its memory."""
        return view_of(self._layout, numbers.to(self._layout.choice([torch.int32, torch.int64])))

    def note(self, draft: Draft) -> None:
        """Note what a draft states."""
        if draft.draft_logits is None:
            self.stated.append([])
        else:
            drawn = draft.mask() & draft.drawn
            self.stated.append([drawn.tolist(), draft.draft_logits[drawn].tolist()] if drawn.any() else [])

    def _state(self, names: list[str], draft_length: int) -> list[Any]:
        """Return what the stage holds, of its drafts in flight only those of a step of the rows `names`."""
        slots = [self.slot_of[name] for name in names if name not in self.allocator.ignored]
        runner, in_flight = self.stage.runners[0], self.stage.in_flight
        found = [self.stops.stopped, runner.ingested, runner.generations]
        if draft_length:
            store = in_flight.store
            found += [in_flight.heads[slots], store.token_ids[slots, :draft_length]]
            found += [store.confidence[slots, :draft_length]]
        return [self.stage.metrics.snapshot(), *[tensor.tolist() for tensor in found]]
