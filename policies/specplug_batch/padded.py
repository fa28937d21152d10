"""The plan half where rows are padded: the draft length with the most expected tokens, less the cost of its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specplug.cost.planner import CostPlanner
from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepCost, StepPlan
from specplug_batch.acceptance import ReportedLengths, RunLengths
from specplug_batch.options import BatchOptions
from specplug_batch.pace import DECIDE_EVERY, DOES_NOT_PAY, Pace, Trials

_MOST_OVER = 4
"""Most tokens of a step that are tried, as a multiple of the setting `saturation`, where no step was timed."""

_CERTAINTY = 0.01
"""Tokens per row and step below which gains are equal: costs are hardly known to a hundredth of a step."""

CHOOSE_EVERY = 4
REST_STEPS = 8
"""Steps that a length is chosen for, and those without drafts, where drafters report what drafts should yield."""

PROBE_EVERY = 64
PROBE_STEPS = 2
"""Steps of which so many draft the shortest draft while drafting does not pay and the drafter reports nothing: without
drafts nobody would see that their acceptance has changed.
"""

_SILENT = 8
"""Steps with drafts in a row without a report after which earlier ones count no longer."""


class PaddedPlanner(CostPlanner):
    """Plans the captured draft length whose expected accepted tokens exceed the cost of its step by most.

    What drafts of each length are expected to yield is reported by the drafter, one step late; drafters without
    confidences, such as the engines' own, are judged by the runs of tokens that were accepted.  Where the engine runs
    all lengths at full speed, 2^n - 1 and the longest are compared.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        super().__init__(self._options.cost)
        longest = context.caps.max_draft_length
        powers = [(1 << bits) - 1 for bits in range(1, longest.bit_length())]
        self._lengths: list[int] = sorted({0, *(context.caps.captured_draft_lengths or [*powers, longest])})
        self._places = np.array(self._lengths)
        self._plans = {
            length: StepPlan(length, self._options.token_budget, why="" if length else DOES_NOT_PAY)
            for length in self._lengths
        }
        self._held_plans = {
            length: replace(plan, num_steps=CHOOSE_EVERY if length else REST_STEPS)
            for length, plan in self._plans.items()
        }
        self._pace = Pace()
        self._trials = Trials()
        self._runs = RunLengths(longest)
        self._longest = longest
        self._reported = ReportedLengths(longest)
        self._newest: list[StepReport] = []  # reports since the newest choice
        self._silent = 0  # steps in a row of whose drafts nothing was reported
        self._cost = np.zeros(len(self._lengths))  # seconds that each length adds, relative to plain decoding
        self._per_row = [0.0] * len(self._lengths)  # the same in tokens per row
        self._requests = 0
        self._length = 0

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length, which is chosen every few steps, with costs that are computed less often."""
        requests = len(stats.requests)
        self._reported.observe(self._newest)
        self._newest.clear()
        self.reads_requests = not self._reported.is_known
        if requests and self._pace.is_due(stats.step, requests):
            self._learn()
            self._requests = requests
            tokens = [requests * (length + 1) for length in self._lengths]
            self._cost = self._added_to_plain(stats, tokens, self._lengths)
            self._per_row = (self._cost * self._rate.speed_up(requests)).tolist()
            if self._reported.is_known:
                self._pace.set_next(min(2 * DECIDE_EVERY, max(CHOOSE_EVERY, stats.step // 4)))
        if not self._costs.is_timed and (trial := self._take_trial(requests)) is not None:
            return self._plans[trial]
        self._length = self._best(max(1, requests))
        if self._reported.is_known:
            return self._held_plans[self._length]
        if not self._length and (stats.step + PROBE_STEPS) % PROBE_EVERY < PROBE_STEPS:
            self._pace.set_soon(stats.step)
            return self._plans[min(self._lengths[1:], default=0)]
        return self._plans[self._length]

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        super().calibrate(costs)
        self._pace.set_next(0)

    def observe(self, report: StepReport) -> None:
        """Keep a step's results for the next choice and decision.

        A drafter that fails reports nothing; what it accepts is then learnt from runs of tokens, as at first.
        """
        if report.draft_length and report.requests:
            self._silent = self._silent + 1 if report.expected is None else 0
            if self._silent == _SILENT:
                self._reported = ReportedLengths(self._longest)
        self._newest.append(report)
        super().observe(report)

    def longest_draft(self, batch_size: int) -> int:
        """Return the longest draft that the engine runs."""
        return self._lengths[-1]

    def status(self) -> dict[str, Any]:
        """Return what is planned and the figures that it follows from, as plain data."""
        if not self._requests:
            return {"why": "nothing was planned yet"}
        accepted = self._accepted()
        place = self._lengths.index(self._length)
        gain = accepted[place] - self._per_row[place]
        why = (
            f"at {self._requests} requests {self._length} draft tokens gain {gain:.2f} tokens per row beyond their cost"
        )
        if not self._length:
            why = f"off: at {self._requests} requests no draft length gains more tokens than its time costs"
        return {
            "why": why,
            "requests": self._requests,
            "draft_length": self._length,
            "speed_up": round(self._rate.speed_up(self._requests), 3),
            "accepted_per_row": self._by_length(accepted),
            "costs_per_row": self._by_length(self._per_row),
            "basis": self._costs.basis,
        }

    def _take_trial(self, requests: int) -> int | None:
        """Return a length that is run to see what it costs, or None."""
        rows = max(1, requests)
        most = min(self.longest_draft(rows), _MOST_OVER * self._options.saturation // rows - 1)
        return self._trials.take_length(requests, [each for each in self._lengths if each <= most])

    def _by_length(self, figures: Sequence[float]) -> dict[str, float]:
        return {str(each): round(figure, 3) for each, figure in zip(self._lengths, figures, strict=True)}

    def _best(self, requests: int) -> int:
        """Return the shortest length within the limits whose gain is the greatest, as far as costs are known."""
        budget = self._options.token_budget
        limit = self.longest_draft(requests)
        if budget is not None:
            limit = min(limit, budget // requests)
        figures = zip(self._lengths, self._accepted(), self._per_row, strict=True)
        gains = {length: accepted - cost for length, accepted, cost in figures if length <= limit}
        enough = max(gains.values()) - _CERTAINTY
        return next(length for length, gain in gains.items() if gain >= enough)

    def _accepted(self) -> list[float]:
        """Return the expected accepted tokens of a row by candidate length."""
        source = self._reported if self._reported.is_known else self._runs
        accepted = source.accepted()
        return [accepted[length] for length in self._lengths]

    def _learn(self) -> None:
        drafted = self._take_reports()
        if not drafted:
            return
        if self.reads_requests:
            self._runs.observe([report for report in drafted if report.draft_length])
        cost = np.interp([report.draft_length for report in drafted], self._places, self._cost).mean()
        self._learn_rate(drafted, 1.0 + float(cost))


class TreePlanner(PaddedPlanner):
    """The same for trees, by their nodes, as the first ones of a tree are a tree: reports say what each node adds.

    Runs of tokens tell nothing of trees, so until a drafter reports, and with one that never does, up to `saturation`
    tokens of a step are taken to be free.  Engines that capture lengths do so for no larger steps: masks take memory.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._free = FreePlanner(context)
        self._captures = bool(context.caps.captured_draft_lengths)

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length by what nodes cost and yield, as soon as that was reported."""
        plan = super().plan(stats)
        self.reads_requests = False
        return plan if self._reported.is_known else self._free.plan(stats)

    def _take_trial(self, requests: int) -> int | None:
        return super()._take_trial(requests) if self._reported.is_known else None

    def longest_draft(self, batch_size: int) -> int:
        """Return the most nodes of a row at this batch size."""
        return self._free.longest_draft(batch_size) if self._captures else self._lengths[-1]

    def status(self) -> dict[str, Any]:
        """Return what is planned and the figures that it follows from, as plain data, once they are known."""
        return super().status() if self._reported.is_known else {"why": "planned by the tokens that saturate"}


class FreePlanner(Planner):
    """Plans the longest drafts whose tokens are all free: up to `saturation` tokens a step."""

    reads_requests = False

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length."""
        return StepPlan(self.longest_draft(max(1, len(stats.requests))), self._options.token_budget)

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        return self._caps.fit_draft_length(max(0, self._options.saturation // batch_size - 1))
