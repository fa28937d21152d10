"""Step planner, which runs in the engine's scheduler and plans each step from the engine's request statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from specplug.steps.draft_report import NO_DRAFTS, DraftReport
from specplug.steps.plan_stage import PlanStage
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, RequestStats, StepReport
from specplug.types.step import NO_SPECULATION, StepCost, StepPlan, StepRecord

R = TypeVar("R")

DraftResult = tuple[str, int, int]
"""A request's id and the numbers of its draft tokens that a step verified and accepted."""


class Bounds(NamedTuple):
    """Limits that a request sets itself: on its prompt and output in tokens, and on draft tokens per step."""

    end: int
    cap: int | None


_FOR_EVER = 1 << 62

UNREPORTED = StepRecord()
"""A step that is neither timed nor reported to the planner."""

REPORT_EVERY = 8
"""Steps of which one reports what drafts are expected to yield while none are planned, as making them takes host time;
where a plan is for several steps, the first one does.
"""


@dataclass(slots=True)
class _Tally:
    """One request's bounds, its counts as in `RequestStats`, and its run, see `StepReport.runs`."""

    bounds: Bounds
    verified: int = 0
    accepted: int = 0
    rejected: int = 0
    run: int = 0
    drafted: int = -1  # the step that drafted last

    def add(self, step: int, draft_length: int, verified: int, accepted: int) -> tuple[int, int]:
        """Count a step; return the lengths of the run before and after it.  A step without drafts ends the run, too."""
        self.verified += verified
        self.accepted += accepted
        self.rejected += accepted < verified
        before = self.run if step == self.drafted + 1 else 0
        after = before + accepted + 1
        self.run = after if accepted >= draft_length else 0
        self.drafted = step
        return before, after


class _Figures(Sequence[RequestStats]):
    """The figures of running requests, computed when a planner first reads them: most planners only count them."""

    def __init__(self, running: Sequence[R], figures: Callable[[R], RequestStats]) -> None:
        self._running = running
        self._figures = figures

    @cached_property
    def _known(self) -> tuple[RequestStats, ...]:
        return tuple(map(self._figures, self._running))

    def __len__(self) -> int:
        return len(self._running)

    def __getitem__(self, index: Any) -> Any:
        return self._known[index]


class StepPlanner(Generic[R]):
    """Plans steps of an engine whose requests are of type `R`.

    Args:
        stage: the policy's plan half, with its faults contained.
        caps: the engine's capabilities.
        ceiling: returns the operator's present limit on the draft length; None if there is none.
        identify, measure, bounds: return a request's id, number of tokens, and bounds, which are asked for once.

    Attributes:
        plan, steps: the newest plan, and the number of steps planned.
        is_off: whether the operator allowed no drafts when the newest plan was made, or it was a plan of several steps
            without drafts that was not made anew.  Its step is then `UNREPORTED`.
        reads_costs: whether steps must be passed to `launch`, unless `is_off`, and to `finish`.
        last_step: cost of the newest step whose time is known; None at first.
    """

    def __init__(
        self,
        stage: PlanStage,
        caps: EngineCaps,
        ceiling: Callable[[], int | None],
        identify: Callable[[R], str],
        measure: Callable[[R], int],
        bounds: Callable[[R], Bounds],
    ) -> None:
        self.stage = stage
        self.caps = caps
        self._allowed = ceiling
        self.plan = NO_SPECULATION
        self.steps = 0
        self._holds_until = 0  # step before which the newest plan holds, for as many requests,
        self._newest: R | None = None  # of which this is the last,
        self._ceiling: int | None = None  # and under this ceiling
        self.reads_costs = self.stage.reads_costs
        self.is_off = False
        self.last_step: StepCost | None = None
        self._planned = self._drafting = 0  # number of requests, and of those that may draft
        self._unread: list[tuple[StepRecord, Sequence[DraftResult], float, DraftReport]] = []  # arguments of `finish`
        self._ended = 0.0
        self._is_report_due = False
        self._next_report = 0  # step from which on the first step of a plan without drafts may be reported, too
        self._identify = identify
        self._measure = measure
        self._bounds = bounds
        self._tallies: dict[str, _Tally] = {}
        self._capped: dict[str, int] = {}

    @property
    def wants_report(self) -> bool:
        """Whether the drafter is to report what the newest plan's drafts are expected to yield, if it can."""
        return self.stage.learns and not self.is_off and self._is_report_due

    def make(self, running: Sequence[R]) -> StepPlan:
        """Plan the next step's drafts; `running` holds the engine's own requests.

        The planner is not called for a constant plan, nor while a plan of several steps holds.  While either holds for
        the same requests, and where a plan has no drafts or the operator allows none, nothing is done for these.
        """
        ceiling = self._allowed()
        holds = self.steps < self._holds_until and len(running) == self._planned and ceiling == self._ceiling
        last = running[-1] if running else None
        holds = holds and (not self.plan.draft_length or last is self._newest)
        self.stage.ceiling = self._ceiling = ceiling
        if holds:
            self.is_off = not self.plan.draft_length
            self.steps += 1
            return self.plan
        self._read()
        self._planned = self._drafting = len(running)
        self._newest = last
        self.is_off = self.stage.is_off
        plan = self.stage.constant_plan
        if plan is None or plan.draft_length:
            self._add(running)
            if plan is None:
                newest = self.plan if self.steps else None
                plan = self.stage.plan(HostStats(self.steps, _Figures(running, self._figures), self.last_step, newest))
            plan = self._enforced(plan)
            stays = plan.draft_length > 0 and not self.reads_costs and self.stage.constant_plan is not None
            holds_for = _FOR_EVER if stays else plan.num_steps
            self._holds_until = 0 if plan.caps and plan.draft_length else self.steps + holds_for
        if plan.caps:
            self._drafting -= sum([plan.caps.get(self._identify(request)) == 0 for request in running])
        self.plan = plan
        is_first = plan.num_steps > 1 and self.steps >= self._next_report
        self._is_report_due = plan.draft_length > 0 or is_first or self.steps % REPORT_EVERY == 0
        if self._is_report_due and not self.is_off:
            self._next_report = 0 if plan.draft_length else self.steps + REPORT_EVERY
        self.steps += 1
        return plan

    def launch(self, began: float, cost: StepCost, *, timed: bool = True) -> StepRecord:
        """Record that the engine runs a step with the drafts of the newest plan; pass the result to `finish`.

        It is `UNREPORTED` while `is_off`.  It has no cost unless it is `timed`, i.e. its measured time covers this step
        alone, nor if it drafts and verifies nothing, or the reverse, as at a change of plans where drafts are verified
        a step later.  It `began` by `time.perf_counter`; the seconds of `cost` are not read.
        """
        if self.is_off:
            return UNREPORTED
        timed = timed and cost.tokens > 0 and (cost.draft_length > 0) == (self.plan.draft_length > 0)
        return StepRecord(self.plan, self.steps - 1, self._drafting, self._planned, began, cost if timed else None)

    def finish(
        self, step: StepRecord, results: Sequence[DraftResult], ended: float, drafts: DraftReport = NO_DRAFTS
    ) -> None:
        """Count the results of a step's `drafts`, which arrived at `ended`; steps finish in launch order.

        Requests that might not draft are left out: padding of theirs does not tell what drafts are worth.

        If the host runs ahead, a step waits for the preceding one, so its time counts from the end of that one.
        Results are read when the next plan is made: while a plan holds, they are only kept.  None are kept that nobody
        reads, see `reads_costs`.
        """
        if not self.reads_costs:
            return
        self._unread.append((step._replace(rows=()), results, ended, drafts.read()))
        if self.steps >= self._holds_until:
            self._read()

    def _read(self) -> None:
        """Read the results that were kept."""
        unread = self._unread
        self._unread = []
        for step, results, ended, drafts in unread:
            self._count(step, results, ended, drafts)

    def _count(self, step: StepRecord, results: Sequence[DraftResult], ended: float, drafts: DraftReport) -> None:
        """Count the results of a step, and report it; see `finish`."""
        if undrafted := {name for name, cap in step.plan.caps.items() if cap == 0}:
            results = [result for result in results if result[0] not in undrafted]
        length = step.plan.draft_length
        known = [each for each in results if each[0] in self._tallies] if self.stage.reads_requests else []
        runs = [self._tallies[name].add(step.step, length, *counts) for name, *counts in known]
        cost = None
        if step.cost is not None:
            cost = self.last_step = replace(step.cost, seconds=ended - max(step.began, self._ended))
        self._ended = ended
        if self.stage.learns and step.step >= 0:
            verified = sum([result[1] for result in results])
            accepted = sum([result[2] for result in results])
            counts = step.step, length, step.requests, step.batch_size, verified, accepted
            self.stage.observe(StepReport(*counts, cost, runs, drafts.expected, drafts.expected_rows))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop the state of finished requests; a plan with drafts does not hold beyond their ends."""
        for request_id in request_ids:
            if self.plan.draft_length:
                self._holds_until = 0
                self._read()
            self._tallies.pop(request_id, None)
            self._capped.pop(request_id, None)

    def policy_caps(self) -> dict[str, int]:
        """Return the newest plan's caps that are below its draft length and below the requests' own caps."""
        longest = self.plan.draft_length
        return {
            name: cap for name, cap in self.plan.caps.items() if cap < min(longest, self._capped.get(name, longest))
        }

    def _add(self, running: Sequence[R]) -> None:
        """Begin the tallies of new requests."""
        for request in running:
            name = self._identify(request)
            if name not in self._tallies:
                bounds = self._bounds(request)
                self._tallies[name] = _Tally(bounds)
                if bounds.cap is not None:
                    self._capped[name] = bounds.cap

    def _figures(self, request: R) -> RequestStats:
        name = self._identify(request)
        length = self._measure(request)
        tally = self._tallies[name]
        room = tally.bounds.end - length
        return RequestStats(name, length, room, tally.bounds.cap, tally.verified, tally.accepted, tally.rejected)

    def _enforced(self, plan: StepPlan) -> StepPlan:
        """Apply the requests' own caps and the token budget, which padded rows divide, to a plan."""
        if self._capped:
            own = {name: min(plan.draft_length_for(name), cap) for name, cap in self._capped.items()}
            plan = replace(plan, caps={**plan.caps, **own})
        if plan.token_budget is None or not self._planned:
            return plan
        length = plan.token_budget // (1 if self.caps.ragged is Ragged.NATIVE else self._planned)
        return replace(plan, draft_length=self.caps.fit_draft_length(min(plan.draft_length, length)))
