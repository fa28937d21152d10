"""Plans of one worker's steps, and the verified steps that later plans follow from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple

import torch

from specplug.cost.store import StartCosts
from specplug.interfaces import PluginContext
from specplug.operator.server_planner import ServerPlanner
from specplug.requests import wire
from specplug.steps.draft_report import NO_DRAFTS, DraftReport
from specplug.steps.step_planner import UNREPORTED, Bounds, DraftResult, until_stop
from specplug.types.step import StepCost, StepRecord
from specplug_sglang.config import engine_caps, least_captured, resolved
from specplug_sglang.requests import served_plainly, text_length


class LaunchedStep(NamedTuple):
    """A launched step of the planner whose results have not arrived.

    Attributes:
        verified: what the caller knows of the draft tokens that may be accepted; None without drafts.
        report: of its drafts, to be read once the results have arrived.
    """

    launched: StepRecord
    reqs: tuple[Any, ...]
    verified: Any
    report: DraftReport = NO_DRAFTS


class VerifiedStep(NamedTuple):
    """A step whose accepted counts are known, until SGLang has found which requests it ended, and where.

    Attributes:
        ended: when its results arrived, in seconds.
        reqs: the requests that had not ended before the step, beyond which SGLang may have let them run.
        before, verified, accepted: of each, output tokens before the step, and verified and accepted draft tokens.
        report: of the step's drafts.
    """

    launched: StepRecord
    ended: float
    reqs: Sequence[Any]
    before: Sequence[int]
    verified: Sequence[int]
    accepted: Sequence[int]
    report: DraftReport

    @classmethod
    def of(cls, step: LaunchedStep, verified: Sequence[int], accepted: Sequence[int], ended: float) -> VerifiedStep:
        """Note the numbers of a step's verified and accepted draft tokens by row."""
        reqs: Sequence[Any] = step.reqs
        runs = [not req.finished() for req in reqs]
        if not all(runs):
            reqs, verified, accepted = (list(compress(column, runs)) for column in (reqs, verified, accepted))
        before = [len(req.output_ids) for req in reqs]
        return cls(step.launched, ended, reqs, before, verified, accepted, step.report)

    def received(self) -> list[int]:
        """Return how many tokens of the step each request's client receives, once the ends are known."""
        return [
            max(len(req.output_ids_through_stop) - before, 0) if req.finished() else accepted + 1
            for req, before, accepted in zip(self.reqs, self.before, self.accepted, strict=True)
        ]

    def fates(self, received: Sequence[int]) -> list[DraftResult]:
        """Return the fates of the requests' drafts up to their ends."""
        fates = list(zip([req.rid for req in self.reqs], self.verified, self.accepted, strict=True))
        for row, (count, accepted) in enumerate(zip(received, self.accepted, strict=True)):
            if count <= accepted:
                fates[row] = until_stop(fates[row], max(count, 1))
        return fates


class PlannedSteps:
    """Plans of one worker's steps, from results that SGLang reports in step order, one step late.

    Args:
        server_args: arguments of a server with specplug enabled.
        model_config: the target's.
        slots: S, rows of SGLang's request pool.
        device: device of batches and drafts.
        rank: tensor-parallel rank.
        tokenizer: the target's, or None.

    Attributes:
        inexact: features, see `served_plainly`, with which a request gets no drafts; None for all of them.
        prefills: whether a prefill was launched since the last step.
        start_costs: what steps cost, as far as it is known before the first request.
    """

    inexact: tuple[str, ...] | None = None

    def __init__(
        self, server_args: Any, model_config: Any, *, slots: int, device: torch.device, rank: int, tokenizer: Any = None
    ) -> None:
        self.resolved = resolved(server_args)
        self.caps = engine_caps(server_args)
        self.rank = rank
        self.device = device
        self.vocab_size = int(model_config.vocab_size)
        self.max_length = int(model_config.context_len)
        self.context = PluginContext(
            caps=self.caps,
            vocab_size=self.vocab_size,
            max_slots=slots,
            max_length=self.max_length,
            device=device,
            rank=rank,
            seed=self.resolved.settings.seed,
            target_path=model_config.model_path,
            target_config=model_config.hf_config,
            target_tokenizer=tokenizer,
        )
        self.step_planner: ServerPlanner[Any] = ServerPlanner(
            self.resolved, self.context, attrgetter("rid"), text_length, self._bounds
        )
        self._launched: deque[LaunchedStep] = deque()
        self._unsettled: VerifiedStep | None = None
        self._began = 0.0
        self.prefills = False
        self.start_costs = StartCosts()

    def verified(self, accepted: Sequence[int]) -> None:
        """Process a step's accepted counts by row."""
        ended = perf_counter()
        self.settle()
        if not self._launched:
            return
        step = self._launched.popleft()
        if len(step.reqs) != len(accepted):  # a step that the worker did not see
            self._launched.clear()
        else:
            self._unsettled = self._results_of(step, accepted, ended)

    def settle(self) -> None:
        """Report the newest verified step to the planner, as its ends are known by now."""
        step = self._unsettled
        self._unsettled = None
        if step is not None:
            self._report(step)

    def _results_of(self, step: LaunchedStep, accepted: Sequence[int], ended: float) -> VerifiedStep | None:
        """Return a step to report once its ends are known, None if nothing is left."""
        return VerifiedStep.of(step, step.verified, accepted, ended)

    def _report(self, step: VerifiedStep) -> None:
        self._finish(step.launched, step.fates(step.received()), step.ended, step.report)

    def _finish(self, step: StepRecord, results: Sequence[DraftResult], ended: float, report: DraftReport) -> None:
        """Report a step and its drafts to the planner.  On ranks that do not draft it learns nothing of drafts."""
        self.step_planner.finish(step, results, ended, report)

    def _plan(self, reqs: Sequence[Any]) -> int:
        """Plan a step; return its draft length, a captured one that covers the longest row."""
        plan = self.step_planner.make(reqs)
        if not plan.caps or not plan.draft_length:
            return plan.draft_length
        longest = max(plan.draft_length_for(req.rid) for req in reqs)
        return min(least_captured(self.caps, longest), plan.draft_length)

    def _launch(self, reqs: Sequence[Any], draft_length: int) -> StepRecord:
        """Return what the planner knows of a step that begins.

        A prefill queued before the step may still be running when the step begins, so the step is then not timed.
        """
        timed = not self.prefills
        self.prefills = False
        planner = self.step_planner
        if planner.is_off:
            return UNREPORTED
        if not planner.reads_costs:
            return StepRecord(planner.plan)
        rows = len(reqs)
        context = sum([len(req.origin_input_ids) + len(req.output_ids) for req in reqs])
        cost = StepCost(rows, rows * (draft_length + 1), context, draft_length, 0.0)
        return planner.launch(self._began, cost, timed=timed)

    def _bounds(self, req: Any) -> Bounds:
        params = req.sampling_params
        most = self.max_length if params.max_new_tokens is None else int(params.max_new_tokens)
        cap = 0 if served_plainly(req, self.inexact) else wire.decode(params.custom_params)[0].cap
        return Bounds(min(len(req.origin_input_ids) + most, self.max_length), cap)
