"""SGLang's workers of its own draft models, such as EAGLE, with draft lengths that specplug plans.

A step runs with the runtime state of its draft length, as SGLang's adaptive speculation does.  The draft model sees
every token, also in steps without drafts: its key-value cache would otherwise lack entries that later drafts attend to
(vLLM 53420, 53426).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import compress
from time import perf_counter
from typing import Any

import torch

from specplug.steps.outcome_counts import OutcomeCounts
from specplug_sglang.config import engine_method, rows_of_pool
from specplug_sglang.requests import finished_prefills
from specplug_sglang.scheduler.planned_steps import LaunchedStep, PlannedSteps, VerifiedStep
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.scheduler.runtime_states import INEXACT, StatesWorker
from specplug_sglang.verification.trees import cut, on_device


class EngineDrafting(PlannedSteps):
    """Requests, plans and counts of one worker.

    Arguments are as in `PlannedSteps`.

    Attributes:
        method: the algorithm of SGLang's drafter, such as "eagle".
        length: the newest plan's draft length.
        counts: results of the drafts.
        limits: most draft tokens of each row of the newest step that may be accepted; None without limits.
    """

    inexact = INEXACT

    def __init__(
        self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, ranks: RankGroup
    ) -> None:
        super().__init__(server_args, model_config, slots=slots, device=device, rank=ranks.rank)
        self.method = str(engine_method(server_args)).lower()
        self._ranks = ranks
        self.counts = OutcomeCounts(self.method, self.caps.max_draft_length)
        self.limits: list[int] | None = None
        self.length = self.caps.max_draft_length
        self._held: dict[str, tuple[Any, int | None]] = {}  # requests of the newest step, and their own limits

    def prefilled(self, reqs: Sequence[Any]) -> None:
        """Count the first tokens of requests, which a prefill emitted."""
        self.prefills = True
        off = len(reqs) if self.step_planner.is_off else sum([self._bounds(req).cap == 0 for req in reqs])
        self.counts.record((), len(reqs), len(reqs), off)

    def plan(self, reqs: Sequence[Any]) -> None:
        """Plan a decode step.  Its draft length is rank 0's and covers the longest row."""
        self._began = perf_counter()
        self.settle()
        self._hold(reqs)
        self.length = self._ranks.agree(self._plan(reqs))

    def launched(self, reqs: Sequence[Any]) -> None:
        """Queue a launched step until its results arrive."""
        step = self._launch(reqs, self.length)
        length = self.length
        limits = self.limits or [length] * len(reqs)
        self._launched.append(LaunchedStep(step, tuple(reqs), tuple([min(length, limit) for limit in limits])))

    @property
    def newest_lengths(self) -> tuple[int, ...]:
        """By row, the most draft tokens that the newest step accepts."""
        lengths: tuple[int, ...] = self._launched[-1].verified
        return lengths

    def _report(self, step: VerifiedStep) -> None:
        """Count and report a step."""
        received = step.received()
        fates = list(compress(step.fates(received), step.verified))
        rows = zip(step.reqs, step.verified, received, strict=True)
        plain = [req.rid for req, verified, count in rows if count and not verified]
        off = sum(map(step.launched.plan.takes_none, plain))
        self.counts.record(fates, len(received), sum(received), off)
        self.step_planner.finish(step.launched, fates, step.ended)

    # -- requests ------------------------------------------------------------------------------------------------

    def _hold(self, reqs: Sequence[Any]) -> None:
        """Note the requests of a step.  One that SGLang retracted starts new figures when it resumes."""
        before = self._held
        same = len(reqs) == len(self._held)
        if same and all(req is held for req, (held, _) in zip(reqs, before.values(), strict=True)):
            return
        self._held = {}
        for req in reqs:
            known = before.pop(req.rid, None)
            if known is not None and known[0] is not req:
                self.step_planner.forget([req.rid])  # the same id, another request
                known = None
            self._held[req.rid] = known or (req, self._bounds(req).cap)
        self.step_planner.forget(before)
        most = self.caps.max_draft_length
        caps = [cap for _, cap in self._held.values()]
        is_limited = any(cap is not None for cap in caps)
        self.limits = [most if cap is None else cap for cap in caps] if is_limited else None


@functools.cache
def planned(worker: type) -> type:
    """Return SGLang's class of workers with specplug's plans."""
    return type(f"Planned{worker.__name__}", (PlannedWorker, worker), {})


class PlannedWorker(StatesWorker):
    """Mixin of SGLang's workers; see `StatesWorker`."""

    drafting: EngineDrafting

    def _plans(self, server_args: Any, ranks: RankGroup) -> EngineDrafting:
        runner = self.target_worker.model_runner
        slots = rows_of_pool(server_args)
        device = torch.device(runner.device)
        return EngineDrafting(server_args, runner.model_config, slots=slots, device=device, ranks=ranks)

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one step of a batch, a prefill or drafts and their verification, as SGLang does."""
        reqs = batch.reqs
        if batch.forward_mode.is_decode():
            self.drafting.plan(reqs)
            result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
            self.drafting.launched(reqs)
            result.cap_lens = torch.tensor(self.drafting.newest_lengths, dtype=torch.int32) + 1
            return result
        result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
        self.drafting.prefilled([reqs[row] for row in finished_prefills(reqs)])
        return result

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify a step's drafts, no more tokens of each than its request allows."""
        drafts = batch.spec_info
        limits = self.drafting.limits
        if limits is not None and drafts.draft_token_num > 1:
            allowed = on_device(limits, torch.int64, drafts.retrieve_next_token.device)
            drafts.retrieve_next_token = cut(drafts.retrieve_next_token, allowed)
        return super().verify(batch, *args, **kwargs)  # type: ignore[misc]
