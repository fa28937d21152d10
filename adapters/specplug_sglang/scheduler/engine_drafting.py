"""The part of a server's worker that plans the drafts of SGLang's own draft model: requests, plans and counts."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from specplug.runtime.outcome_counts import OutcomeCounts
from specplug_sglang.config import engine_method
from specplug_sglang.scheduler.planned_steps import LaunchedStep, PlannedSteps, VerifiedStep
from specplug_sglang.scheduler.ranks import RankGroup


class EngineDrafting(PlannedSteps):
    """Requests, plans and counts of one worker.

    It is the policy of SGLang's `AdaptiveController`, which keeps a runtime state per draft length and switches to
    the one that the policy names.

    Args:
        server_args: arguments of a server whose own drafter drafts.
        model_config: the target's.
        slots: S, rows of SGLang's request pool.
        device: the worker's.
        ranks: the tensor-parallel ranks.

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
        self._prefills = True
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
