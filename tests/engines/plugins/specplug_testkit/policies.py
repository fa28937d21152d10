"""Policies: one never plans the same draft length twice in a row, one learns what drafts are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specplug.interfaces import Planner, PluginContext
from specplug.steps.trim import SurvivalTrimmer, admitted
from specplug.types.paths import ROOT
from specplug.types.plan import LEVELS, HostStats, StepReport, TrimLimits
from specplug.types.step import CostPoint, Draft, EngineBatch, StepCost, StepPlan, Verdict
from specplug_testkit.options import LadderOptions

SHARE = 0.1
"""What verifying a token costs, as a share of a step."""


class LearningPlanner(Planner):
    """Plans as far as tokens were worth their cost, which is a share of what a step emits per request.

    Attributes:
        reports: what became of steps.
        costs: of the steps whose time was known when a plan was made, each once.
        prices: what a draft token costs, of all plans.
        calibrated: costs that were known before the first request.
    """

    calibrated: Sequence[StepCost] = ()

    def __init__(self, context: PluginContext) -> None:
        self._caps = context.caps
        self._verified = self._accepted = self._steps = self._emitted = 1.0
        self.reports: list[StepReport] = []
        self.costs: list[StepCost] = []
        self.prices: list[float] = []

    def plan(self, stats: HostStats) -> StepPlan:
        if stats.last_step is not None and (not self.costs or self.costs[-1] is not stats.last_step):
            self.costs.append(stats.last_step)
        price = min(1.0, SHARE * self._emitted / self._steps)
        self.prices.append(price)
        rate = self._accepted / self._verified
        draft_length = 0
        while draft_length < self._caps.max_draft_length and rate ** (draft_length + 1) >= price:
            draft_length += 1
        costs = CostPoint(0, 0.0), CostPoint(1000, 1000 * price)
        return StepPlan(self._caps.fit_draft_length(max(1, draft_length)), costs=costs)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        self.calibrated = costs

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)
        self._steps += report.requests
        self._emitted += report.requests + report.accepted
        self._verified += report.verified
        self._accepted += report.accepted


class LearningTrimmer(SurvivalTrimmer):
    """Takes confidences for as good as they have turned out to be so far.

    Attributes:
        counts: [2] int64 on the device, draft tokens that were decided and those that were accepted.
        price: [] float64, the cost of a draft token in the newest step that was trimmed; None at first.
    """

    def __init__(self, context: PluginContext) -> None:
        self.counts = torch.zeros(2, dtype=torch.int64, device=context.device)
        self.price: torch.Tensor | None = None

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        self.price = (limits.costs[-1] - limits.costs[0]) / (LEVELS * 1000)
        trust = (self.counts[1] + 1) / (self.counts[0] + 1)
        is_first = torch.arange(draft.draft_length, device=draft.device) == 0
        if draft.parents is not None:
            is_first = draft.parents == ROOT
        trusted = torch.where(is_first, draft.confidence * trust, draft.confidence)
        return draft.keep(admitted(replace(draft, confidence=trusted), limits))

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.counts += torch.stack((verdict.tested().sum(), verdict.accepted.sum()))


class Ladder(Planner):
    """Plans the given draft lengths in turn, and caps requests in the order in which they appear."""

    def __init__(self, context: PluginContext) -> None:
        self._options: LadderOptions = context.options or LadderOptions()
        self._longest = context.caps.max_draft_length
        self._step = 0
        self._order: dict[str, int] = {}
        self.planned: list[int] = []

    def plan(self, stats: HostStats) -> StepPlan:
        options = self._options
        draft_length = min(options.draft_lengths[self._step % len(options.draft_lengths)], self._longest)
        self._step += 1
        self.planned.append(draft_length)
        caps: dict[str, int] = {}
        for request in stats.requests:
            number = self._order.setdefault(request.request_id, len(self._order))
            own = options.caps[number % len(options.caps)] if options.caps else None
            limits = [limit for limit in (own, request.cap) if limit is not None]
            if limits:
                caps[request.request_id] = min(limits)
        return StepPlan(draft_length, caps=caps)


class Listener(Ladder):
    """A ladder that receives the reports of steps, and learns nothing from them.

    Attributes:
        reports: of steps.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.reports: list[StepReport] = []

    def observe(self, report: StepReport) -> None:
        self.reports.append(report)
