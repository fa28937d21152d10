"""Results of a worker's steps: steps that wait for them, and results that wait until the requests' ends are known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress
from time import perf_counter
from typing import Any, NamedTuple

from specplug.operator.server_planner import ServerPlanner
from specplug.steps.draft_report import DraftReport
from specplug.steps.draft_stage import DraftStage
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.steps.step_planner import UNREPORTED, DraftResult, until_stop
from specplug.types.step import StepCost, StepRecord


class LaunchedStep(NamedTuple):
    """A launched step of the planner whose results have not arrived.

    Attributes:
        result: SGLang's, which is on the host once the results have arrived; None without drafts.
        report: of its drafts, to be read once the results have arrived.
    """

    launched: StepRecord
    reqs: tuple[Any, ...]
    result: Any
    report: DraftReport


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
    def of(cls, step: LaunchedStep, accepted: Sequence[int], ended: float) -> VerifiedStep:
        """Note the numbers of a step's draft tokens by row: accepted, and verified by SGLang's `cap_lens`."""
        reqs: Sequence[Any] = step.reqs
        verified = [count - 1 for count in step.result.cap_lens.tolist()]
        runs = [not req.finished() for req in reqs]
        if not all(runs):
            reqs, verified, accepted = (list(compress(column, runs)) for column in (reqs, verified, accepted))
        before = [len(req.output_ids) for req in reqs]
        return cls(step.launched, ended, reqs, before, verified, accepted, step.report)

    def received_counts(self) -> list[int]:
        """Return how many tokens of the step each request's client receives, once the ends are known."""
        return [
            max(len(req.output_ids_through_stop) - before, 0) if req.finished() else accepted + 1
            for req, before, accepted in zip(self.reqs, self.before, self.accepted, strict=True)
        ]

    def draft_results(self, received: Sequence[int]) -> list[DraftResult]:
        """Return the results of the requests' drafts up to their ends."""
        results = list(zip([req.rid for req in self.reqs], self.verified, self.accepted, strict=True))
        for row, (count, accepted) in enumerate(zip(received, self.accepted, strict=True)):
            if count <= accepted:
                results[row] = until_stop(results[row], max(count, 1))
        return results


class Results:
    """Results of steps, which arrive in step order, one step late; planner and counts get them.

    Args:
        planner: the planner.
        stage: counts steps without drafts, where it drafts; otherwise None.
        outcomes: counts steps where SGLang's own drafter alone drafts; otherwise None.

    Attributes:
        has_prefilled: whether a prefill was launched since the last step.
    """

    def __init__(
        self, step_planner: ServerPlanner[Any], stage: DraftStage | None, outcomes: OutcomeCounts | None
    ) -> None:
        self._planner = step_planner
        self._stage = stage
        self._outcomes = outcomes
        self.has_prefilled = False
        self.pending: deque[LaunchedStep] = deque()
        self._unsettled: VerifiedStep | None = None

    def add(self, began: float, reqs: Sequence[Any], draft_length: int, result: Any, report: DraftReport) -> None:
        """Queue a launched step until its results arrive, with SGLang's `result`, which is on the host by then.

        If no draft token was verified, `draft_length` is 0; the step's tokens are counted when its results arrive.
        """
        step = self._launch(began, reqs, draft_length)
        self.pending.append(LaunchedStep(step, tuple(reqs), result if draft_length else None, report))

    def _launch(self, began: float, reqs: Sequence[Any], draft_length: int) -> StepRecord:
        """Return what the planner knows of a step that begins.

        A prefill queued before the step may still be running when the step begins, so the step is then not timed.
        """
        timed = not self.has_prefilled
        self.has_prefilled = False
        planner = self._planner
        if planner.is_off:
            return UNREPORTED
        if not planner.reads_costs:
            return StepRecord(planner.plan)
        rows = len(reqs)
        context = sum([len(req.origin_input_ids) + len(req.output_ids) for req in reqs])
        cost = StepCost(rows, rows * (draft_length + 1), context, draft_length, 0.0)
        return planner.launch(began, cost, timed=timed)

    def verified(self, accepted: Sequence[int]) -> None:
        """Process a step's accepted counts by row."""
        ended = perf_counter()
        self.settle()
        if not self.pending:
            return
        step = self.pending.popleft()
        if len(step.reqs) != len(accepted):  # a step that the worker did not see
            self.pending.clear()
        elif step.result is None:
            plan = step.launched.plan
            self.count(step.reqs, [plan.takes_none(req.rid) for req in step.reqs])
            self._planner.finish(step.launched, (), ended, step.report)
        elif self._planner.reads_costs or self._outcomes is not None:
            self._unsettled = VerifiedStep.of(step, accepted, ended)

    def settle(self) -> None:
        """Report the newest verified step, as its ends are known by now."""
        step = self._unsettled
        self._unsettled = None
        if step is None:
            return
        received = step.received_counts()
        results = step.draft_results(received)
        if self._outcomes is not None:
            rows = zip(step.reqs, step.verified, received, strict=True)
            plain = [req.rid for req, verified, count in rows if count and not verified]
            off = sum(map(step.launched.plan.takes_none, plain))
            self._outcomes.record(list(compress(results, step.verified)), len(received), sum(received), off)
        self._planner.finish(step.launched, results, step.ended, step.report)

    def count(self, reqs: Sequence[Any], off: Sequence[bool]) -> None:
        """Count a step of requests without drafts; `off` is true for those that could not draft."""
        for could_not in (False, True):
            rows = [req for req, is_off in zip(reqs, off, strict=True) if is_off is could_not]
            ended = sum(req.finished() for req in rows)
            if self._outcomes is not None:
                emitted = len(rows) - ended
                self._outcomes.record((), emitted, emitted, emitted if could_not else 0)
            elif self._stage is not None:
                self._stage.metrics.record_on_host(len(rows), ended, planned=not could_not)
