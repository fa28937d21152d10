"""The settings and the plan half: caps on the drafts of single requests, by the acceptance learnt of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from specplug.cost.planner import CostPlanner
from specplug.interfaces import Planner, PluginContext
from specplug.settings.policies import CostOptions
from specplug.types.caps import Ragged
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import CostPoint, StepPlan
from specplug_adaptive.acceptance import Array, RequestAcceptance


class AdaptiveOptions(CostOptions):
    """The size of a step up to which tokens are free while no step was measured."""

    removed: ClassVar[Mapping[str, str]] = {"read_every": "acceptance is read at each decision"}


_DECIDE_EVERY = 4
"""Steps between two decisions."""

_GAIN = 0.05
"""Least predicted gain of caps, since rows of different lengths may take a step off its CUDA graph."""


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine: without caps where a request's shorter draft is verified at full length.

    Nor are there caps for trees, whose nodes have no positions that a rate could be learnt for.
    """
    caps = context.caps
    verifies_less = caps.ragged in (Ragged.NATIVE, Ragged.COSTS_FULL_GRAPH) and not caps.verifies_budget
    sets_caps = verifies_less and not caps.trees and caps.max_draft_length > 1
    return AdaptivePlanner(context) if sets_caps else NoCaps(context)


class NoCaps(Planner):
    """Plans the longest draft at every step."""

    is_constant = True

    def __init__(self, context: PluginContext) -> None:
        self._plan = StepPlan(context.caps.fit_draft_length(context.caps.max_draft_length))

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the constant plan."""
        return self._plan


class AdaptivePlanner(CostPlanner):
    """Caps each request at the last draft token that its own acceptance makes worth verifying, at least one.

    The costs are those of the newest plan, if another policy states any, and its own otherwise.  A request whose drafts
    were all accepted may draft twice as far as before.
    """

    def __init__(self, context: PluginContext) -> None:
        options: AdaptiveOptions = context.options or AdaptiveOptions()
        super().__init__(options.cost)
        self._longest = context.caps.fit_draft_length(context.caps.max_draft_length)
        self._acceptance = RequestAcceptance()
        self._uncapped = self._plan = StepPlan(self._longest)
        self._next = 0  # step of the next decision

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the caps, which are set anew every few steps."""
        newest = stats.last_plan or self._uncapped
        if stats.step >= self._next and newest.draft_length and stats.requests:
            self._next = stats.step + _DECIDE_EVERY
            self._plan = self._capped(stats, newest)
        return self._plan

    def observe(self, report: StepReport) -> None:
        """Keep a step's results for the next decision, if its cost is known."""
        if report.cost is not None and report.requests:
            super().observe(report)

    def status(self) -> dict[str, Any]:
        """Return the average acceptance and the number of requests that are capped, as plain data."""
        return {"acceptance": round(self._acceptance.average_rate, 3), "capped_requests": len(self._plan.caps)}

    def _capped(self, stats: HostStats, newest: StepPlan) -> StepPlan:
        is_limited = newest.draft_length < self._plan.draft_length  # by another policy
        longest = newest.draft_length if is_limited else self._longest
        costs = newest.costs or self._curve(stats, longest)
        if not any(point.cost > _GAIN for point in costs):
            return self._uncapped  # nothing can cost too much, so the figures of single requests are not read
        rates, swept = self._acceptance.read(stats.requests)
        names = [request.request_id for request in stats.requests]
        before = np.array([self._plan.draft_length_for(name) for name in names])
        lengths, gain = choose_draft_lengths(rates, longest, costs, np.where(swept, 2 * before, 1))
        if gain < _GAIN:
            return self._uncapped
        cap = int(lengths.max())
        caps = {name: each for name, each in zip(names, lengths.tolist(), strict=True) if each < cap}
        plan = StepPlan(cap if cap < longest else self._longest, caps=caps)
        return self._plan if plan == self._plan else plan

    def _learn(self) -> None:
        """Enter the results since the curve before."""
        reports = self._take_reports()
        if not reports:
            return
        requests = round(sum(report.batch_size for report in reports) / len(reports))
        verified = round(sum(report.verified for report in reports) / len(reports))
        length = max(report.draft_length for report in reports)
        plain, drafted = self._costs.seconds(requests, 0.0, [requests, requests + verified], [0, length])
        self._learn_rate(reports, float(drafted / plain))

    def _curve(self, stats: HostStats, longest: int) -> tuple[CostPoint, ...]:
        self._learn()
        requests = len(stats.requests)
        extra = sorted({round(requests * longest * share / 16) for share in range(17)})
        tokens = [requests + each for each in extra]
        added = self._added_to_plain(stats, tokens, [longest if each else 0 for each in extra])
        costs = added * requests * self._rate.speed_up(requests)
        return tuple(map(CostPoint, extra, costs.tolist()))


def choose_draft_lengths(
    rates: Array, longest: int, costs: Sequence[CostPoint], least: npt.NDArray[np.int64] | int = 1
) -> tuple[npt.NDArray[np.int64], float]:
    """Return the draft lengths of requests that are worth verifying: the decision of `specplug.steps.trim`, by rates.

    The token at position j survives with probability rate^j.

    Args:
        rates: [B] float64, each request's acceptance rate.
        longest: the longest draft.
        costs: the cost curve, as in a plan.
        least: [B] int64, or of every request: lengths to draft in any case.

    Returns:
        lengths: [B] int64, at least 1.
        gain: tokens that these gain on the longest drafts, their cost included, as a share of what is emitted.
    """
    place = np.arange(longest)
    survival = rates[:, None] ** (place + 1)
    ordered = np.sort(survival, axis=None)[::-1]
    cost = np.interp(np.arange(ordered.size + 1), *np.array(costs).T)
    gains = np.concatenate([[0.0], np.cumsum(ordered)]) - cost
    count = int(np.argmax(gains))
    threshold = ordered[count - 1] if count else np.inf
    lengths = np.clip(np.count_nonzero(survival >= threshold, axis=1), np.maximum(least, 1), longest)
    kept = place < lengths[:, None]
    emitted = float(rates.size + survival[kept].sum())
    gain = float(survival[kept].sum() - cost[int(lengths.sum())] - gains[-1])
    return lengths, gain / emitted
