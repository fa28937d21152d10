"""Results of a worker's steps: steps that wait for them, and results that wait until the requests' ends are known."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from specplug.operator.server_planner import ServerPlanner
from specplug.steps.draft_report import DraftReport
from specplug.steps.draft_stage import DraftStage
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.steps.step_planner import UNREPORTED
from specplug.types.step import StepCost, StepRecord, until_stop


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
        self.pending: deque[tuple[StepRecord, Any, DraftReport]] = deque()  # with SGLang's result, None without drafts
        self._unsettled: tuple[StepRecord, float, DraftReport] | None = None  # and when its results arrived

    def add(self, began: float, reqs: Sequence[Any], draft_length: int, result: Any, report: DraftReport) -> None:
        """Queue a launched step until its results arrive, with SGLang's `result`, which is on the host by then.

        If no draft token was verified, `draft_length` is 0; the step's tokens are counted when its results arrive.  A
        prefill queued before the step may still be running when the step begins, so the step is then not timed.
        """
        planner = self._planner
        step = UNREPORTED if planner.is_off else StepRecord(planner.plan)
        if planner.reads_costs and not planner.is_off:
            rows = len(reqs)
            context = sum([len(req.origin_input_ids) + len(req.output_ids) for req in reqs])
            cost = StepCost(rows, rows * (draft_length + 1), context, draft_length, 0.0)
            step = planner.launch(began, cost, timed=not self.has_prefilled)
        self.has_prefilled = False
        self.pending.append((step._replace(rows=tuple(reqs)), result if draft_length else None, report))

    def verified(self, accepted: Sequence[int]) -> None:
        """Process a step's accepted counts by row."""
        ended = perf_counter()
        self.settle()
        if not self.pending:
            return
        step, result, report = self.pending.popleft()
        if len(step.rows) != len(accepted):  # a step that the worker did not see
            self.pending.clear()
        elif result is None:
            self.count(step.rows, [step.plan.takes_none(req.rid) for req in step.rows])
            self._planner.finish(step, (), ended, report)
        elif self._planner.reads_costs or self._outcomes is not None:
            counts = zip(step.rows, result.cap_lens.tolist(), accepted, strict=True)
            # SGLang drops a step of requests that have ended or were retracted; `cap_lens` counts the bonus token, too.
            rows = [
                (req, len(req.output_ids), count - 1, kept)
                for req, count, kept in counts
                if not (req.finished() or req.is_retracted)
            ]
            self._unsettled = step._replace(rows=rows), ended, report

    def settle(self) -> None:
        """Report the newest verified step, as its ends, and so what clients receive of it, are known by now."""
        if self._unsettled is None:
            return
        step, ended, report = self._unsettled
        self._unsettled = None
        results = []
        drafted = []
        emitted = 0
        off = 0
        for req, before, verified, accepted in step.rows:
            received = accepted + 1
            if req.finished():
                received = len(req.output_ids_through_stop) - before
            if received <= 0:  # SGLang aborted it in place of its step
                continue
            result = req.rid, *until_stop(verified, accepted, received)
            results.append(result)
            emitted += received
            if verified:
                drafted.append(result)
            else:
                off += step.plan.takes_none(req.rid)
        if self._outcomes is not None:
            self._outcomes.record(drafted, len(results), emitted, off)
        self._planner.finish(step, results, ended, report)

    def count(self, reqs: Sequence[Any], off: Sequence[bool]) -> None:
        """Count a step of requests without drafts; `off` is true for those that could not draft."""
        for could_not in (False, True):
            rows = [req for req, is_off in zip(reqs, off, strict=True) if is_off is could_not and not req.is_retracted]
            ended = sum(req.finished() for req in rows)
            if self._outcomes is not None:
                emitted = len(rows) - ended
                self._outcomes.record((), emitted, emitted, emitted if could_not else 0)
            elif self._stage is not None:
                self._stage.metrics.record_on_host(len(rows), ended, planned=not could_not)
