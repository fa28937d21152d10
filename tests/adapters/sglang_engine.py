"""A toy of SGLang's engine around its ways of drafting, and random schedules for it; needs no SGLang."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from specplug.settings.model import Settings
from specplug.steps.device_steps import Launches
from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.draft_stage import DraftStage
from specplug.steps.rows import Rows
from specplug.steps.slots import RunningRequest, SlotAllocator
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.request import BEGINS, Request, RequestEvent
from specplug.types.step import Draft, StepPlan
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.drafts import Drafts
from specplug_sglang.verification.trees import TokenTable

CPU = torch.device("cpu")
SLOTS, LENGTH, VOCAB, DRAFT_LENGTH, STOP = 4, 160, 5, 4, 4


class Engine:
    """Requests in slots, their texts, and one way of drafting for them.

    Args:
        stage: the draft stage; None for that of `ngram`.
        launches: the kernels that take steps; None if the stage does.
        reports: whether steps report what their drafts are expected to yield, in which `run` wants that.
    """

    def __init__(
        self, *, stage: DraftStage | None = None, launches: Launches | None = None, reports: bool = False
    ) -> None:
        caps = EngineCaps(DRAFT_LENGTH, ragged=Ragged.PADDED)
        context = PluginContext(caps, vocab_size=VOCAB, max_slots=SLOTS, max_length=LENGTH, device=CPU)
        self.table, self.slot_of, self.reports = TokenTable(SLOTS, LENGTH, DRAFT_LENGTH + 1, CPU), {}, reports
        stage = stage or build_draft_stage(Settings(policy="fixed"), default_registry(), context, grammars=True)
        self.allocator = SlotAllocator(SLOTS, CPU, self._tell)
        self.drafts = Drafts(stage, self.table, self.allocator.slots, caps, VOCAB, launches=launches)
        self.allocator.engine_slot = self.slot_of.__getitem__
        self._rows: Rows | None = None

    def _tell(self, event: RequestEvent) -> None:
        if event.kind not in BEGINS:
            self.drafts.flush()
        self.drafts.stage.on_event(event)

    def start(self, name: str, slot: int, prompt: list[int], max_tokens: int) -> None:
        """Prefill a request, which emits the prompt's last token."""
        self.slot_of[name] = slot
        text, end = torch.tensor(prompt[:-1]).numpy(), min(len(prompt) - 1 + max_tokens, LENGTH)
        request = Request(name, len(text), max_tokens)
        self.allocator.start(RunningRequest(request, end, stop_ids=(STOP,), tokens=text))
        self.table.write(slot, text)
        self.table.append_one(
            torch.tensor([slot]), torch.tensor([len(text)]), torch.tensor([prompt[-1]], dtype=torch.int32)
        )
        self.drafts.note_single_tokens()
        self.drafts.stage.metrics.record_on_host(1)

    def finish(self, name: str, visible: int | None) -> None:
        if visible is not None:
            self.drafts.ingest(Rows(self.allocator, [name]), visible)
        self.allocator.finish(name, aborted=visible is None, visible=visible)
        del self.slot_of[name]

    def propose(
        self, names: list[str], lengths: dict[str, int], plan: StepPlan, engine_ids: Tensor | None = None
    ) -> Draft | None:
        """Draft for a batch, after SGLang's own drafter's `engine_ids` [B, G]; None if nothing is drafted."""
        if self._rows is None or not self._rows.are_of(names):
            self._rows = Rows(self.allocator, names)
        reqs = [SimpleNamespace(rid=name, grammar=None) for name in names]
        slots = torch.tensor([self.slot_of[name] for name in names])
        before = torch.tensor([lengths[name] - 1 for name in names])
        self._batch = Decoding(reqs, self._rows, slots, before, False, engine_ids)
        if plan.draft_length:
            return self.drafts.propose(self._batch, plan.draft_length, plan)
        self.drafts.skip(self._batch)
        return None

    def verify(self, draft: Draft | None, emitted: list[list[int]]) -> None:
        """Append what a step emitted, and report it if it verified drafts."""
        counts = [len(row) for row in emitted]
        for slot, before, row in zip(self._batch.slots.tolist(), self._batch.before.tolist(), emitted, strict=True):
            self.table.tokens[slot, before + 1 : before + 1 + len(row)] = torch.tensor(row)
        if draft is None:
            self.drafts.note_single_tokens()
            self.drafts.stage.metrics.record_on_host(len(emitted))
        else:
            self.drafts.observe(self._batch, draft, torch.tensor(counts, dtype=torch.int32))

    def close(self) -> dict[str, Any]:
        """Report everything, and return the counts."""
        for name in list(self.slot_of):
            self.finish(name, None)
        found = self.drafts.stage.metrics.snapshot().as_dict()
        self.drafts.stage.close()
        return found


def verified(random: Random, draft: Draft | None, rows: int) -> list[list[int]]:
    """Return what a step emits: the beginning of each row's draft, and one more token."""
    if draft is None:
        return [[random.randrange(VOCAB)] for _ in range(rows)]
    emitted = []
    for row in range(rows):
        accepted = 0
        while accepted < draft.lengths[row] and random.randint(0, 3):
            accepted += 1
        emitted.append([*draft.token_ids[row, :accepted].tolist(), random.randrange(VOCAB)])
    return emitted


def run(random: Random, engines: list[Engine], steps: int, *, engine_tokens: int = 0) -> list[int]:
    """Run a random schedule on all engines, and hold their drafts and their reports to be the same.

    All requests are in every batch, and each leaves after the step that follows its end, as with overlapped scheduling.
    SGLang's own drafter drafts `engine_tokens` tokens or fewer.  Returned are the rows of all reports.
    """
    lengths: dict[str, int] = {}
    ends: dict[str, int] = {}  # the longest text, or the length at which a stop was emitted
    over: list[str] = []  # ended in the step before the last
    seen: list[int] = []  # rows of reports
    for number in range(steps):
        free = sorted(set(range(SLOTS)) - set(engines[0].slot_of.values()))
        if free and random.randint(0, 1):
            name, prompt = f"r{number}", [random.randrange(VOCAB) for _ in range(random.randint(2, 14))]
            slot, most = random.choice(free), random.choice([4, 40])
            for engine in engines:
                engine.start(name, slot, prompt, most)
            lengths[name], ends[name] = len(prompt), len(prompt) - 1 + most
            if prompt[-1] == STOP:
                ends[name] = 0
        gone = over + ([random.choice(sorted(lengths))] if lengths and random.randint(0, 5) == 0 else [])
        for name in dict.fromkeys(gone):
            visible = random.choice([None, lengths.pop(name)])
            for engine in engines:
                engine.finish(name, visible)
        over = [name for name, length in lengths.items() if length >= ends[name]]
        names = sorted(lengths)
        if not names:
            continue
        caps = {names[0]: 2} if random.randint(0, 3) == 0 else {}
        budget = random.choice([None, None, None, 3])
        plan = StepPlan(random.choice([0, 2, DRAFT_LENGTH, DRAFT_LENGTH]), budget, caps)
        engine_ids = None
        if engine_tokens:
            engine_ids = torch.tensor([[random.randrange(-1, VOCAB) for _ in range(engine_tokens)] for _ in names])
        wanted = random.randint(0, 1) == 0 and (plan.draft_length > 0 or all(engine.reports for engine in engines))
        for engine in engines:
            engine.drafts.reports_expected, engine.drafts.report = wanted and engine.reports, NO_DRAFTS
        drafts = [engine.propose(names, lengths, plan, engine_ids) for engine in engines]
        for draft in drafts[1:]:
            assert_same(drafts[0], draft)
        reports = [engine.drafts.report.read() for engine in engines if engine.reports]
        for report in reports:
            assert (report.expected_rows, report.expected) == (reports[0].expected_rows, reports[0].expected)
            assert report.expected_rows in (0, sum(lengths[name] < ends[name] for name in names)), "none if it failed"
        seen.extend(report.expected_rows for report in reports)
        emitted = verified(random, drafts[0], len(names))
        for engine, draft in zip(engines, drafts, strict=True):
            engine.verify(draft, emitted)
        for name, row in zip(names, emitted, strict=True):
            lengths[name] += len(row)
            if STOP in row:
                ends[name] = 0
    return seen


def assert_same(one: Draft | None, other: Draft | None) -> None:
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert one.draft_length == other.draft_length
    assert one.lengths.tolist() == other.lengths.tolist()
    for row, length in enumerate(one.lengths.tolist()):
        assert one.token_ids[row, :length].tolist() == other.token_ids[row, :length].tolist()
