"""SGLang's workers of its own draft models, such as EAGLE, with draft lengths that specplug plans.

A step runs with the runtime state of its draft length, as SGLang's adaptive speculation does.  The draft model sees
every token, also in steps without drafts: its key-value cache would otherwise lack entries that later drafts attend to
(vLLM 53420, 53426).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from specplug.runtime.outcome_counts import OutcomeCounts
from specplug_sglang import doctor, seams
from specplug_sglang.config import engine_method, rows_of_pool
from specplug_sglang.requests import finished_prefills
from specplug_sglang.scheduler.grammar import shorten_rollbacks
from specplug_sglang.scheduler.planned_steps import LaunchedStep, PlannedSteps, VerifiedStep
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification import acceptance
from specplug_sglang.verification.trees import cut


class EngineDrafting(PlannedSteps):
    """Requests, plans and counts of one worker.

    It is the policy of SGLang's `AdaptiveController`, which keeps a runtime state per draft length and switches to
    the one that the policy names.  Arguments are as in `PlannedSteps`.

    Attributes:
        method: the algorithm of SGLang's drafter, such as "eagle".
        counts: results of the drafts.
        limits: most draft tokens of each row of the newest step that may be accepted; None without limits.
    """

    # SGLang serves these exactly only if a step emits one token; it never applies the others in verification.
    inexact = ("penalties", "min_new_tokens", "grammar")

    def __init__(
        self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, ranks: RankGroup
    ) -> None:
        super().__init__(server_args, model_config, slots=slots, device=device, rank=ranks.rank)
        self.method, self._ranks = str(engine_method(server_args)).lower(), ranks
        self.counts = OutcomeCounts(self.method, self.caps.max_draft_length)
        self.limits: list[int] | None = None
        self._length = self.caps.max_draft_length
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
        self._length = self._ranks.agree(self._plan(reqs))

    def launched(self, reqs: Sequence[Any]) -> None:
        """Queue a launched step until its results arrive."""
        step, length = self._launch(reqs, self._length), self._length
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
        fates = [fate for row, fate in zip(step.rows, step.fates(received), strict=True) if row.verified]
        plain = [row.req.rid for row, count in zip(step.rows, received, strict=True) if count and not row.verified]
        off = sum(map(step.launched.plan[2].takes_none, plain))
        self.counts.record(fates, len(received), sum(received), off)
        self.step_planner.finish(step.launched, fates, step.ended)

    # -- the policy of SGLang's controller -----------------------------------------------------------------------

    @property
    def candidate_steps(self) -> list[int]:
        """The draft lengths that SGLang builds runtime states for."""
        return list(self.caps.captured_draft_lengths)

    def set_cuda_graph_bs(self, cuda_graph_bs: list[int] | None) -> None:
        """Do nothing: every draft length is captured for every batch size."""

    def cuda_graph_bs_for_step(self, step: int) -> None:
        """Return None: see `set_cuda_graph_bs`."""

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Return the newest plan's draft length."""
        return self._length

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int) -> None:
        """Process a step's accepted counts by row."""
        self.verified(num_correct_drafts_per_req)

    # -- requests ------------------------------------------------------------------------------------------------

    def _hold(self, reqs: Sequence[Any]) -> None:
        """Note the requests of a step.  One that SGLang retracted starts new figures when it resumes."""
        before, same = self._held, len(reqs) == len(self._held)
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
        most, caps = self.caps.max_draft_length, [cap for _, cap in self._held.values()]
        is_limited = any(cap is not None for cap in caps)
        self.limits = [most if cap is None else cap for cap in caps] if is_limited else None


_SWITCHES = "sglang.srt.speculative.eagle_worker_v2"
"""The logger to which SGLang writes a line per change of the draft length."""


@functools.cache
def planned(worker: type) -> type:
    """Return SGLang's class of workers with specplug's plans."""
    return type(f"Planned{worker.__name__}", (PlannedWorker, worker), {})


class PlannedWorker:
    """Mixin of SGLang's workers, before which it must stand among the bases."""

    target_worker: Any

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController

        seams.require("engine drafts")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)  # type: ignore[call-arg]
        ranks, runner = RankGroup(get_parallel().tp_group), target_worker.model_runner
        slots, device = rows_of_pool(server_args), torch.device(runner.device)
        self.drafting = EngineDrafting(server_args, runner.model_config, slots=slots, device=device, ranks=ranks)
        self.adaptive_controller = AdaptiveController(self, self.drafting)  # builds the states with SGLang's graphs
        logging.getLogger(_SWITCHES).addFilter(lambda record: "Switch adaptive" not in record.getMessage())
        shorten_rollbacks(server_args)
        acceptance.count_lossy(server_args)
        if ranks.rank == 0:
            doctor.launch_of(server_args).announce()

    def init_cuda_graphs(self) -> None:
        """Build the runtime state of each draft length, and on a GPU capture its graphs.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        from specplug_sglang.verification.draft_lengths import refuse_fused_accept

        refuse_fused_accept(self.target_worker.model_runner.attn_backend)
        super().init_cuda_graphs()  # type: ignore[misc]

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
        drafts, limits = batch.spec_info, self.drafting.limits
        if limits is not None and drafts.draft_token_num > 1:
            drafts.retrieve_next_token = cut(drafts.retrieve_next_token, limits)
        return super().verify(batch, *args, **kwargs)  # type: ignore[misc]
