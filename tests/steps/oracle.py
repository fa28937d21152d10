"""A toy engine that takes steps in both of the ways that engines do, random schedules for it, and their comparison.

The draft stage takes steps itself, by tensor operations; or kernels take them, around a proposer on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from random import Random
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext, Proposer, Trimmer
from specplug.plugins.registry import default_registry
from specplug.settings.model import Faults, Settings
from specplug.steps.device_step import DraftOutputs, EngineTensors
from specplug.steps.device_steps import DeviceSteps, Launches
from specplug.steps.draft_report import NO_DRAFTS, DraftReport, may_report, survival_sums
from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.steps.stops import StopDetector
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import Distribution, EngineCaps, ProposerCaps
from specplug.types.request import Reference, Request, RequestOptions
from specplug.types.step import Draft, Outcome, StepPlan
from tests.steps.tools import stage_of
from tests.steps.transfers import POISON, view_of
from tests.steps.trim_tools import random_costs

CPU = torch.device("cpu")
SLOTS, LENGTH, VOCAB, DRAFT_LENGTH = 4, 160, 5, 3
STOP = 4
DRAFT = ("token_ids", "lengths", "confidence", "source", "base_len")
VERDICT = ("proposed", "verified", "accepted", "cut_by_grammar", "emitted", "after_stop")

SCRATCH = ("matches", "candidates", "nodes", "corpus_matches")
"""What of the state of a lookup is not read again after a step."""

Row = tuple[str, int, int]
"""A row of a step: the request's name, the tokens that it emitted, and the draft tokens that were rejected."""


def lookup_stage(*, engine_tokens: int = 0, device: torch.device = CPU, faults: Faults | None = None) -> DraftStage:
    """Return the stage of a lookup."""
    caps = EngineCaps(DRAFT_LENGTH, engine_tokens=engine_tokens)
    context = PluginContext(caps, vocab_size=VOCAB, max_slots=SLOTS, max_length=LENGTH, device=device)
    settings = Settings(proposer="ngram", policy="fixed", faults=faults or Faults())
    return build_draft_stage(settings, default_registry(), context)


class Engine:
    """Requests in slots, with texts on the "device".

    Args:
        stage: takes the steps, or is what they are taken for; by default that of a lookup.
        launches: the kernels that take steps.
        device: of the texts.

    Attributes:
        by_kernels: decides, for each step, whether kernels take it, where there are some.
        states: after each step of a `Scripted` proposer, what the stage holds.
        stated: after each step of the stage or of kernels, the logits of the tokens that were drawn.
        reports_expected: whether steps report what their drafts are expected to yield.
        reports: what each step reported.
        forgets: whether the engine overwrites the tokens of its table that steps have taken.
    """

    def __init__(
        self,
        stage: DraftStage | None = None,
        *,
        launches: Launches | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.stage, self.device = stage or lookup_stage(), device
        (runner,) = self.stage.runners
        self.proposer, on = runner.handle.proposer, runner.buffer.device
        self.allocator = SlotAllocator(SLOTS, on, lambda event: self.stage.on_event(event))
        self.slot_of: dict[str, int] = {}
        self.allocator.engine_slot = self.slot_of.__getitem__
        self.stops = StopDetector(SLOTS, DRAFT_LENGTH, on)
        self._layout = Random(0)
        self.texts = view_of(self._layout, torch.full((SLOTS, LENGTH), -7, dtype=torch.int32, device=device))
        self.lengths = torch.zeros(SLOTS, dtype=torch.int32, device=device)
        self.last = torch.zeros(SLOTS, 1, dtype=torch.int64, device=device)
        self._lengths = [0] * SLOTS  # so that no step reads from the device
        self._facts: Rows | None = None
        self.by_kernels: Callable[[], bool] = lambda: True
        self.reports_expected = self.forgets = False
        self.reports: list[Any] = []
        self.states: list[Any] = []
        self.stated: list[Any] = []
        self._by_device: DeviceSteps | None = None
        if launches is not None:
            assert DeviceSteps.applies(self.stage)
            numbers = torch.zeros(1, dtype=torch.int32, device=device)
            rows = EngineTensors(numbers, self.lengths, self.texts, numbers, numbers)
            like = rows, self._outputs(1), self.last
            self._by_device = DeviceSteps(self.stage, self.allocator.slots, self.stops, VOCAB, launches, like=like)

    def _outputs(self, size: int) -> DraftOutputs:
        """Return where drafts go, in poisoned memory."""

        def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.full(shape, -9, dtype=dtype, device=self.device)

        outputs = DraftOutputs(
            poisoned(size, DRAFT_LENGTH, dtype=torch.int64), poisoned(size, DRAFT_LENGTH, dtype=torch.float32)
        )
        if self.stage.engine_tokens:
            outputs = outputs._replace(from_engine=poisoned(size, dtype=torch.int32))
        return outputs

    def start(self, name: str, slot: int, prompt: list[int], *, ignored: bool = False, **of_request: Any) -> None:
        """Give a request a slot, whose text begins with its prompt."""
        self.slot_of[name], prompt = slot, list(prompt)
        self.texts[slot, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.lengths[slot], self.last[slot], self._lengths[slot] = len(prompt), prompt[-1], len(prompt)
        if ignored:
            self.allocator.ignore(name)
            return
        end = min(LENGTH - 1, len(prompt) + of_request.pop("max_tokens", LENGTH))
        request = Request(name, len(prompt), end - len(prompt), **of_request)
        self.allocator.start(RunningRequest(request, end, stop_ids=(STOP,), tokens=prompt))
        prompt.append(STOP)  # engines lend their own lists

    def finish(self, name: str, visible: int | None) -> None:
        """End a request."""
        self.allocator.finish(name, aborted=visible is None, visible=visible)
        del self.slot_of[name]

    def emit(self, name: str, tokens: list[int]) -> None:
        """Append what the model emitted."""
        slot = self.slot_of[name]
        start, self._lengths[slot] = self._lengths[slot], self._lengths[slot] + len(tokens)
        self.lengths[slot] = self._lengths[slot]
        self.texts[slot, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        if tokens:
            self.last[slot] = tokens[-1]

    def idle(self, names: list[str], emitted: int) -> None:
        """Take a step without drafts, in which some of the rows emitted a token."""
        self.stage.metrics.record_on_host(emitted)

    def _facts_of(self, names: list[str]) -> Rows:
        if self._facts is None or not self._facts.are_of(names):
            self._facts = Rows(self.allocator, names)
        return self._facts

    def step(self, rows: list[Row], plan: StepPlan) -> DraftOutputs:
        """Take a step of rows; return drafts."""
        names = [name for name, *_ in rows]
        columns = [self.slot_of[name] for name in names], *([row[k] for row in rows] for k in (1, 2))
        slots, emitted, rejected = (torch.tensor(it, device=self.device) for it in columns)
        facts, outputs = self._facts_of(names), self._outputs(len(rows))
        if self._by_device is not None and self.by_kernels():
            self._step_by_kernels(self._by_device, facts, (slots, emitted, rejected), plan, outputs)
        else:
            self._step_of_stage(facts, (slots, emitted.int(), rejected.int()), plan, outputs)
        if self.forgets and plan.draft_length:
            for name in facts.names:
                slot = self.slot_of[name]
                self.texts[slot, : self._lengths[slot]] = POISON
        if isinstance(self.proposer, Scripted):
            self.states.append(self._state(names, plan.draft_length))
        return outputs

    def _step_by_kernels(
        self, steps: DeviceSteps, facts: Rows, columns: Sequence[Tensor], plan: StepPlan, outputs: DraftOutputs
    ) -> None:
        slots, emitted, rejected = map(self._view, columns)
        engine = EngineTensors(slots, self._view(self.lengths), self.texts, emitted, rejected)
        heat = view_of(self._layout, torch.zeros(SLOTS, device=self.device))
        if self.stage.engine_tokens:
            engine = engine._replace(engine_ids=self._view(self._engine_ids(slots)))
        views = outputs._replace(ids=self._view(outputs.ids), confidence=view_of(self._layout, outputs.confidence))
        last, expected = self._view(self.last), self.reports_expected
        draft = steps.take(facts, engine, views, last, heat, plan, reports_expected=expected)
        outputs.ids[:], outputs.confidence[:] = views.ids, views.confidence
        self.reports.append(steps.report.read())
        if facts.names:
            self._note(draft)

    def _view(self, numbers: Tensor) -> Tensor:
        """Return integers as an engine may hold them: in either width, anywhere in its memory."""
        return view_of(self._layout, numbers.to(self._layout.choice([torch.int32, torch.int64])))

    def _step_of_stage(self, facts: Rows, columns: Sequence[Tensor], plan: StepPlan, outputs: DraftOutputs) -> None:
        out, confidence, from_engine = outputs
        out[:], confidence[:] = self.last[columns[0]].expand_as(out), 0
        if from_engine is not None:
            from_engine[:] = 0
        if not facts.names:
            self.reports.append(NO_DRAFTS)
            return
        kept = list(range(len(out))) if facts.kept is None else facts.kept
        draft = self._draft_of_stage(facts, [column[kept] for column in columns], plan)
        self._note(draft)
        for place, row in enumerate(kept):
            count = int(draft.lengths[place])
            out[row, :count], confidence[row, :count] = (
                it[place, :count] for it in (draft.token_ids, draft.confidence)
            )
            if from_engine is not None:
                others = [k for k in range(count) if draft.source[place, k] != len(self.proposer.sources) - 1]
                from_engine[row] = min([*others, count])

    def _draft_of_stage(self, facts: Rows, columns: Sequence[Tensor], plan: StepPlan) -> Draft:
        slots, emitted, rejected = columns
        lengths = self.lengths[slots]
        batch = facts.batch(
            self.texts,
            slots,
            lengths,
            VOCAB,
            sampled=emitted > 0,
            temperature=torch.zeros(len(slots)),
            engine_ids=self._engine_ids(slots).int() if self.stage.engine_tokens else None,
        )
        accepted = (emitted - 1).clamp(min=0)
        after = self.stops.after(facts, batch.tokens, slots, lengths, emitted)
        verified = torch.where(emitted > 0, accepted + rejected, 0)
        self.stage.observe(batch, Outcome(verified, accepted, emitted, after_stop=after))
        caps = torch.tensor([plan.caps.get(name, 99) for name in facts.names], dtype=torch.int32)
        if not self.reports_expected or not may_report(self.stage):
            self.reports.append(NO_DRAFTS)
            draft = self.stage.propose(batch, plan.draft_length, torch.minimum(facts.caps, caps))
            return self.stage.trim(batch, draft, plan).as_one_hot(batch.grammar)
        draft = self.stage.propose(batch, DRAFT_LENGTH, facts.caps)
        counts = (emitted > 0) & (facts.caps > 0) & (self.stops.stopped[slots] != facts.generations)
        has_failed = self.stage.runners[0].has_failed
        self.reports.append(NO_DRAFTS if has_failed else DraftReport(survival_sums(draft, counts).tolist()))
        draft.shorten(caps.clamp(max=plan.draft_length))
        trimmed = self.stage.trim(batch, draft.view(len(slots), plan.draft_length), plan)
        return trimmed.as_one_hot(batch.grammar)

    def _engine_ids(self, slots: Tensor) -> Tensor:
        """Return [B, G] int64, the draft of the engine's own drafter, from -1 on."""
        places = torch.arange(self.stage.engine_tokens, device=self.device)
        return (self.lengths[slots][:, None] * 7 + slots[:, None] + places) % (VOCAB + 1) - 1

    def _note(self, draft: Draft) -> None:
        """Note the logits that a draft states."""
        drawn = None if draft.draft_logits is None else draft.mask() & draft.drawn
        self.stated.append(
            [drawn.tolist(), draft.draft_logits[drawn].tolist()] if drawn is not None and drawn.any() else []
        )

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

    def left(self) -> dict[str, Any]:
        """Return what the steps have left, by name."""
        reports = [(report.expected_rows, report.expected) for report in self.reports]
        left = {"reports": reports, "counts": self.stage.metrics.snapshot()}
        if not isinstance(self.proposer, Scripted):
            state = self.proposer.steps.state._asdict()
            return left | {f"learnt {name}": it.tolist() for name, it in state.items() if name not in SCRATCH}
        trimmer = getattr(self.stage._trimmer, "log", None)
        found = {"states": self.states, "logits": self.stated, "proposer": self.proposer.log, "trimmer": trimmer}
        return left | {name: repr(it) for name, it in found.items()}  # NaN equals itself

    def close(self) -> None:
        """Release the stage."""
        self.stage.close()


def compare(random: Random, engines: list[Engine], *, steps: int) -> tuple[int, list[str]]:
    """Run a random schedule on all engines, and close them.

    Return the number of steps that were compared, and how any engine differed from the first: in the drafts of a step,
    or in what the steps have left.
    """
    found = run(random, engines, steps=steps)
    expected, *others = [engine.left() for engine in engines]
    wrong = [f"{name}: differs" for left in others for name in expected if left[name] != expected[name]]
    for number, (first, *rest) in enumerate(found):
        for name, one in first._asdict().items():
            if one is not None and not all(torch.equal(one.cpu(), getattr(it, name).cpu()) for it in rest):
                wrong.append(f"step {number}: {name} differ")
    for engine in engines:
        engine.close()
    return len(found), wrong


def run(random: Random, engines: list[Engine], *, steps: int) -> list[list[DraftOutputs]]:
    """Run a random schedule on all engines; return, per step with drafts, what each engine drafts.

    Args:
        random: draws the schedule.
        engines: of which all do the same.
        steps: of the schedule, some of them without drafts.
    """
    found: list[list[DraftOutputs]] = []
    lengths: dict[str, int] = {}

    def everywhere(method: str, *args: Any, **kwargs: Any) -> list[Any]:
        return [getattr(engine, method)(*args, **kwargs) for engine in engines]

    for number in range(steps):
        free = sorted(set(range(SLOTS)) - set(engines[0].slot_of.values()))
        if free and random.randint(0, 1):
            name, prompt = f"r{number}", _tokens(random, 1, 12)
            everywhere("start", name, random.choice(free), prompt, **_of_request(random))
            lengths[name] = len(prompt)
        full = [name for name, length in lengths.items() if not _has_room(length)]
        if full or (lengths and random.randint(0, 5) == 0):
            gone = random.choice(full or sorted(lengths))
            everywhere("finish", gone, random.choice([None, lengths.pop(gone)]))
        rows = _rows(random, lengths)
        is_idle = random.randint(0, 3) == 0
        for name, count, _ in rows:
            new = _tokens(random, count, count)[: 1 if is_idle else None]
            everywhere("emit", name, new)
            lengths[name] += len(new)
        if is_idle:
            everywhere("idle", [name for name, *_ in rows], sum(count > 0 for _, count, _ in rows))
        elif rows:
            named = random.choice([None, None, rows[0][0]])
            budget = random.choice([None, None, None, 2])
            costs = random_costs(random, DRAFT_LENGTH * len(rows))
            plan = StepPlan(random.randint(0, DRAFT_LENGTH), budget, {named: 1} if named else {}, costs=costs)
            found.append(everywhere("step", rows, plan))
    return found


def _tokens(random: Random, least: int, most: int) -> list[int]:
    return [random.randrange(VOCAB) for _ in range(random.randint(least, most))]


def _of_request(random: Random) -> dict[str, Any]:
    if random.randint(0, 7) == 0:
        return {"ignored": True}
    temperature = random.choice([0.0, 0.0, 1.0])
    texts = [_tokens(random, 1, 8) for _ in range(random.randint(0, 1))]
    return {
        "max_tokens": random.choice([5, 60]),
        "temperature": temperature,
        "grammar": random.choice([False, False, True]),
        "options": RequestOptions(num_speculative_tokens=random.choice([None, None, 1, 0])),
        "references": tuple(map(Reference.of, texts)),
    }


def _has_room(length: int) -> bool:
    return length + DRAFT_LENGTH + 2 < LENGTH


def _rows(random: Random, lengths: dict[str, int]) -> list[Row]:
    rows, names = [], sorted(lengths)
    random.shuffle(names)
    for name in names:
        if _has_room(lengths[name]) and random.randint(0, 4) > 0:
            count = random.randint(0, DRAFT_LENGTH + 1)
            rows.append((name, count, random.randint(0, DRAFT_LENGTH) if count else 0))
    return rows


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
    """Drafts by a script, wrong in every way, too long every third step, and notes what it is handed."""

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
        self.log.append(["propose", limits.tolist(), draft.base_len.tolist(), *_shown(draft)])
        if batch.engine_ids is not None:
            self.log.append(["engine", batch.engine_ids.dtype, batch.engine_ids.tolist()])
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
        if self._steps % 3 == 0:
            draft.lengths.add_(7)
        if draft.draft_logits is not None:
            assert draft.drawn.all(), "the initial value"
            draft.drawn[:, 1::2] = False
            draft.draft_logits[:] = (batch.lengths * self._steps)[:, None, None]

    def observe(self, batch, draft, verdict):
        self.log.append(["observe", batch.num_new.tolist(), batch.lengths.tolist(), batch.temperature.tolist()])
        self.log.append([*_shown(draft), *[getattr(verdict, name).tolist() for name in VERDICT]])


class Watching(SurvivalTrimmer):
    """Trims every step, learns, and notes what it is handed."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        return True

    def trim(self, draft, limits):
        self.log.append([*_shown(draft), limits.costs.tolist()])
        return super().trim(draft, limits)

    def observe(self, batch, draft, verdict):
        self.log.append([*_shown(draft), draft.sources, verdict.accepted.tolist(), batch.reset_slots])


def _shown(draft: Draft) -> list[Any]:
    return [getattr(draft, name).tolist() for name in DRAFT]


def scripted_stage(
    proposer: Scripted,
    trimmer: Trimmer,
    draft_length: int = DRAFT_LENGTH,
    *,
    learns: bool,
    device: torch.device = CPU,
    distribution: Distribution = Distribution.ONE_HOT,
    engine_tokens: int = 0,
) -> DraftStage:
    """Return a draft stage of a proposer, which may learn, and state a distribution."""
    extends = engine_tokens > 0
    proposer.caps = ProposerCaps(learns=learns, incremental=learns, distribution=distribution, extends=extends)
    return stage_of(
        {"scripted": proposer},
        EngineCaps(draft_length, draft_input=distribution, engine_tokens=engine_tokens),
        trimmer,
        device=device,
        vocab_size=VOCAB,
        max_slots=SLOTS,
        other_sources=[] if engine_tokens else ["another"],
        max_consecutive=2,
        cooldown_steps=1,
    )
