"""A toy engine whose draft stage takes its steps itself, or in a stream; and random schedules for it."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.pipeline.stream import host_kernels
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.runtime.rows import RowFacts
from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stops import StopDetector
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.batch import EngineBatch
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import Price, StepPlan
from specplug.types.request import Reference, Request, RequestOptions
from specplug.types.verdict import Outcome
from tests.pipeline.fake_stream import FakeStream

CPU = torch.device("cpu")
SLOTS, LENGTH, VOCAB, DRAFT_LENGTH = 4, 160, 5, 3
STOP = 4

Step = tuple[torch.Tensor, torch.Tensor]
"""Draft ids and their confidence, each [B, K]."""


class Late:
    """The transfers of a CPU, as work of a stream; their inputs are copied when they are enqueued."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream

    def pack(self, buffers: Any, batch_size: int, rows: EngineRows) -> None:
        copies = rows._replace(
            **{name: value.clone() for name, value in rows._asdict().items() if isinstance(value, torch.Tensor)}
        )
        self._stream.enqueue(lambda: host_kernels.pack(buffers, batch_size, copies))

    def unpack(self, buffers: Any, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
        self._stream.enqueue(lambda: host_kernels.unpack(buffers, batch_size, draft_length, outputs))


class Engine:
    """Requests in slots, with texts on the "device".

    Args:
        streamed: take steps in a stream; otherwise the stage takes them.
        stream: runs them late; None runs them inline.
        proposer: its name.
        device: of the texts.
    """

    def __init__(
        self,
        *,
        streamed: bool,
        stream: FakeStream | None = None,
        proposer: str = "ngram",
        device: torch.device = CPU,
    ) -> None:
        context = PluginContext(
            EngineCaps(DRAFT_LENGTH), vocab_size=VOCAB, max_slots=SLOTS, max_length=LENGTH, device=CPU
        )
        settings = Settings(proposer=proposer, policy="fixed")
        self.stage = build_draft_stage(settings, default_registry(), context)
        self.allocator = SlotAllocator(SLOTS, CPU, lambda event: self.stage.on_event(event))
        self.slot_of: dict[str, int] = {}
        self.allocator.engine_slot = self.slot_of.__getitem__
        self.stops = StopDetector(SLOTS, DRAFT_LENGTH, CPU)
        self._allocate(device)
        if streamed:
            self.stream_with(stream)

    def _allocate(self, device: torch.device) -> None:
        """Allocate the texts."""
        self.device, self.texts = device, torch.full((SLOTS, LENGTH), -7, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(SLOTS, dtype=torch.int32, device=device)
        self.last = torch.zeros(SLOTS, 1, dtype=torch.int64, device=device)
        self._lengths = [0] * SLOTS  # so that no step reads from the device
        self._facts: RowFacts | None = None
        self.steps: StreamSteps | None = None

    def stream_with(self, stream: FakeStream | None) -> None:
        """Take steps in a stream from now on, inline for None."""
        self.stream_by(**({} if stream is None else {"stream": stream, "transfers": Late(stream), "on_thread": True}))

    def stream_by(self, **given: Any) -> None:
        """Take steps in a stream from now on; `given`: further arguments of `StreamSteps`."""
        assert StreamSteps.applies(self.stage)
        numbers = torch.zeros(1, dtype=torch.int32, device=self.device)
        like = self._rows(numbers.long(), numbers, numbers), self._outputs(1)
        self.steps = StreamSteps(self.stage, self.allocator.slots, LENGTH, VOCAB, self.device, like=like, **given)

    def _rows(self, slots: torch.Tensor, emitted: torch.Tensor, rejected: torch.Tensor) -> EngineRows:
        return EngineRows(slots, self.lengths, self.texts, emitted, rejected)

    def _outputs(self, size: int) -> DraftOutputs:
        out = torch.full((size, DRAFT_LENGTH), -9, device=self.device)
        return DraftOutputs(out, torch.full((size, DRAFT_LENGTH), -9.0, device=self.device))

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
        if self.steps is None or self.steps.skip(self._facts_of(names)):
            self.stage.metrics.record_on_host(emitted)
        else:
            self.step([(name, 1, 0) for name in names], StepPlan(0))

    def _facts_of(self, names: list[str]) -> RowFacts:
        if self._facts is None or not self._facts.hold(self.allocator, names):
            self._facts = RowFacts(self.allocator, names)
        return self._facts

    def step(self, rows: list[tuple[str, int, int]], plan: StepPlan) -> Step:
        """Take a step of rows (name, tokens emitted, draft tokens rejected); return drafts, which are filled later."""
        names, size = [name for name, *_ in rows], len(rows)
        columns = [self.slot_of[name] for name in names], *([row[k] for row in rows] for k in (1, 2))
        slots, emitted, rejected = (torch.tensor(it, device=self.device) for it in columns)
        emitted, rejected = emitted.int(), rejected.int()  # slots are int64, as on V2 and SGLang
        outputs, facts = self._outputs(size), self._facts_of(names)
        out, confidence, *_ = outputs
        if self.steps is not None:
            self.late = self.steps.take(facts, self._rows(slots, emitted, rejected), plan, outputs)
            return out, confidence
        out[:], confidence[:] = self.last[slots.long()].expand(size, DRAFT_LENGTH), 0
        if facts.names:
            self._step_of_stage(facts, slots, emitted, rejected, plan, out, confidence)
        return out, confidence

    def _step_of_stage(
        self,
        facts: RowFacts,
        slots: torch.Tensor,
        emitted: torch.Tensor,
        rejected: torch.Tensor,
        plan: StepPlan,
        out: torch.Tensor,
        confidence: torch.Tensor,
    ) -> None:
        kept = list(range(len(slots))) if facts.kept is None else facts.kept
        slots, emitted, rejected = slots[kept], emitted[kept], rejected[kept]
        rows, lengths = self.allocator.slots.rows(slots), self.lengths[slots.long()]
        batch = EngineBatch(
            slots=slots,
            generations=rows.generations,
            rows=slots,
            tokens=self.texts,
            lengths=lengths,
            sampled=emitted > 0,
            room=rows.ends - lengths,
            temperature=torch.zeros(len(slots)),
            grammar=rows.grammar,
            vocab_size=VOCAB,
            reset_slots=self.allocator.slots.take_resets(),
            barriers=facts.barriers,
        )
        accepted = (emitted - 1).clamp(min=0)
        after = self.stops.after(batch.tokens, slots, slots, lengths, emitted, rows)
        verified = torch.where(emitted > 0, accepted + rejected, 0)
        self.stage.observe(batch, Outcome(verified, accepted, emitted, after_stop=after))
        caps = torch.tensor([plan.caps.get(name, 99) for name in facts.names], dtype=torch.int32)
        draft = self.stage.propose(batch, plan.draft_length, torch.minimum(rows.caps, caps))
        draft = self.stage.trim(batch, draft, plan)
        self.note(draft)
        for place, row in enumerate(kept):
            count = int(draft.lengths[place])
            out[row, :count], confidence[row, :count] = (
                it[place, :count] for it in (draft.token_ids, draft.confidence)
            )

    def note(self, draft: Draft) -> None:
        """Note the draft of a step that the stage has taken."""

    def close(self) -> None:
        """Release the stage."""
        if self.steps is None:
            self.stage.close()
        else:
            self.steps.close()


def run(random: Random, engines: list[Engine], *, steps: int, settled: bool = True) -> list[list[Step]]:
    """Run a random schedule on all engines; return, per step, each engine's ids and confidences.

    Args:
        random: draws the schedule.
        engines: of which all do the same.
        steps: of the schedule, some of them without drafts.
        settled: wait, before each step, until requests have been taken in.
    """
    found: list[list[Step]] = []
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
        if settled:
            for engine in engines:
                if engine.steps is not None:
                    engine.steps.intake.settle()
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
            prices = random.choice([(), (), (Price(0.4),), (Price(0.2, 1), Price(0.6, 3))])
            plan = StepPlan(random.randint(0, DRAFT_LENGTH), budget, {named: 1} if named else {}, prices=prices)
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
        "options": RequestOptions(num_speculative_tokens=random.choice([None, None, 1, 0])),
        "references": tuple(map(Reference.of, texts)),
    }


def _has_room(length: int) -> bool:
    return length + DRAFT_LENGTH + 2 < LENGTH


def _rows(random: Random, lengths: dict[str, int]) -> list[tuple[str, int, int]]:
    rows, names = [], sorted(lengths)
    random.shuffle(names)
    for name in names:
        if _has_room(lengths[name]) and random.randint(0, 4) > 0:
            count = random.randint(0, DRAFT_LENGTH + 1)
            rows.append((name, count, random.randint(0, DRAFT_LENGTH) if count else 0))
    return rows
