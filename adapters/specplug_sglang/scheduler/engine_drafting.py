"""The part of a server's worker that plans the drafts of SGLang's own draft model: requests, plans and counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

import torch

from specplug.interfaces import PluginContext, TargetModel
from specplug.requests import wire
from specplug.runtime.outcome_counts import OutcomeCounts
from specplug.runtime.step_planner import UNREPORTED, Bounds, Launched, StepPlanner
from specplug_sglang.config import engine_caps, engine_method, least_captured, resolved
from specplug_sglang.requests import served_plainly, text_length
from specplug_sglang.scheduler.ranks import Ranks
from specplug_sglang.scheduler.unsettled import Unsettled

INEXACT = ("penalties", "min_new_tokens", "grammar")
"""Features that SGLang serves exactly only if a step emits one token; the others it never applies in verification."""


class _Step(NamedTuple):
    """A launched step whose results have not arrived.

    Attributes:
        launched: what the planner knows of it.
        reqs: its requests.
        verified: draft tokens of each that may be accepted.
    """

    launched: Launched
    reqs: tuple[Any, ...]
    verified: tuple[int, ...]


class EngineDrafting:
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
        step_planner: makes the plans.
        counts: results of the drafts.
        limits: most draft tokens of each row of the newest step that may be accepted; None without limits.
    """

    def __init__(self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, ranks: Ranks) -> None:
        self.resolved, self.caps = resolved(server_args), engine_caps(server_args)
        self.method, self.device, self.rank = str(engine_method(server_args)).lower(), device, ranks.rank
        self._ranks, self._max_length = ranks, int(model_config.context_len)
        context = PluginContext(
            caps=self.caps,
            vocab_size=int(model_config.vocab_size),
            max_slots=slots,
            max_length=self._max_length,
            device=device,
            rank=ranks.rank,
            seed=self.resolved.settings.seed,
            target=TargetModel(model_config.model_path, model_config.hf_config),
        )
        self.step_planner: StepPlanner[Any] = StepPlanner(
            self.resolved, context, attrgetter("rid"), text_length, self._bounds
        )
        self.counts = OutcomeCounts(self.method, self.caps.max_draft_length)
        self.limits: list[int] | None = None
        self._length = self.caps.max_draft_length
        self._held: dict[str, tuple[Any, int | None]] = {}  # requests of the newest step, and their own limits
        self._launched: deque[_Step] = deque()
        self._unsettled: Unsettled | None = None
        self._began, self._prefills = 0.0, False

    # -- one step ------------------------------------------------------------------------------------------------

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
        plan = self.step_planner.make(reqs)
        length = plan.draft_length
        if plan.caps and length:
            longest = max(plan.draft_length_for(req.rid) for req in reqs)
            length = min(least_captured(self.caps, longest), length)
        self._length = self._ranks.agree(length)

    def launched(self, reqs: Sequence[Any]) -> None:
        """Queue a launched step until its results arrive."""
        rows, length, step = len(reqs), self._length, UNREPORTED
        if not self.step_planner.is_off:
            # A prefill queued before the step may still be running when the step begins, so the step is not timed.
            context, timed = sum(map(text_length, reqs)), not self._prefills
            step = self.step_planner.launch(self._began, rows, rows * (length + 1), context, length, timed=timed)
        self._prefills = False
        limits = self.limits or [length] * rows
        self._launched.append(_Step(step, tuple(reqs), tuple([min(length, limit) for limit in limits])))

    @property
    def newest_lengths(self) -> tuple[int, ...]:
        """By row, the most draft tokens that the newest step accepts."""
        return self._launched[-1].verified

    def settle(self) -> None:
        """Count and report the newest verified step, as its ends are known by now."""
        step, self._unsettled = self._unsettled, None
        if step is None:
            return
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
        """Report a step's accepted counts per row to the planner.  SGLang calls this in step order, one step late."""
        ended = perf_counter()
        self.settle()
        if not self._launched:
            return
        step, reqs, verified = self._launched.popleft()
        if len(reqs) != len(num_correct_drafts_per_req):  # a step that the worker did not see
            self._launched.clear()
            return
        self._unsettled = Unsettled.of(step, ended, reqs, verified, num_correct_drafts_per_req)

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

    def _bounds(self, req: Any) -> Bounds:
        params = req.sampling_params
        most = self._max_length if params.max_new_tokens is None else int(params.max_new_tokens)
        cap = 0 if served_plainly(req) in INEXACT else wire.decode(params.custom_params)[0].cap
        return Bounds(min(len(req.origin_input_ids) + most, self._max_length), cap)
