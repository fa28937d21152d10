"""The plan half where rows are padded: one draft length for the batch, by learnt acceptance and learnt step costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from specplug.cost import StepCosts
from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import HostStats, StepCost, StepPlan, StepReport
from specplug_batch.gains import (
    DECIDE_EVERY,
    DOES_NOT_PAY,
    EARLY,
    GAIN_TO_KEEP,
    GAIN_TO_START,
    LIKE,
    TRIALS,
    AcceptanceLengths,
    Array,
    Probes,
    size_class,
)
from specplug_batch.options import BatchOptions

_GAIN_TO_CHANGE = 0.01
"""Least predicted gain of another draft length over the present one."""

_MOST_OVER = 4
"""Most tokens of a step that are considered, as a multiple of the setting `saturation`."""

_CHANCE = 1.5
"""Accepted tokens of a probe's many rows that may be chance."""

_EMITTED_STEPS = 32
"""Number of steps over which the emitted tokens are averaged, about as many as prompts are counted over."""

_OPTIMISM, _COST_DOUBT, _SCATTER = 1.5, 0.4, 2.0
"""What a probe hopes for: standard errors of what is emitted; the share by which a step that was never measured may be
cheaper; and mean errors of single steps by which the average of measured ones may be.
"""


class PaddedPlanner(Planner):
    """Plans the captured draft length with the best expected tokens per second at the present batch size.

    It drafts only if that is predicted to gain over no speculation.  A probe is one step of another draft length, which
    might be better as far as is known; probes become rare while they change nothing.  Without speculation they draft
    one token, so that hopeless drafts cost little.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps
        self._costs = StepCosts(self._options.cost)
        self._acceptance = AcceptanceLengths(self._caps.max_draft_length)
        self._lengths = self._candidates()
        self._decision: tuple[list[int], Array] | None = None  # draft lengths and their predicted rates
        # By class of batch sizes: steps planned to measure each draft length; None once that is done.
        self._trials: dict[int, Counter[int] | None] = {}
        self._emitted = 1.0  # tokens per row and step, lately
        self._planned = (0, 0, -1)  # draft length, batch size, step of the decision
        self._probes, self._cost_of_probe = Probes(), 1.0  # of one draft token, relative to a step without drafts

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length."""
        requests = max(1, len(stats.requests))
        length, planned_for, at = self._planned
        is_new = abs(requests - planned_for) > LIKE * planned_for or length not in self._considered(requests)
        if is_new or stats.step - at >= DECIDE_EVERY or stats.step < EARLY:
            length = self._decide(requests, stats, length if planned_for > 0 else None)
            self._planned = length, requests, stats.step
            self._acceptance.settle(length)
        trials = self._trials.setdefault(size_class(requests), Counter())
        if (
            trials is not None
            and self._costs.is_measured
            and (trial := self._trial(requests, stats, trials)) is not None
        ):
            return StepPlan(trial, self._options.token_budget)
        resumes, cost = (0, 1.0) if length else (requests, self._cost_of_probe)
        if self._probes.is_due(stats.step, resumes=resumes, cost=cost):
            length = self._probe(requests, stats, length)
        rests = not length and stats.step >= EARLY and self._costs.is_measured
        num_steps = self._probes.rest(stats.step) if rests else 1
        return StepPlan(length, self._options.token_budget, num_steps=num_steps, why="" if length else DOES_NOT_PAY)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Start from costs that the engine profiled."""
        self._costs.calibrate(costs)

    def observe(self, report: StepReport) -> None:
        """Learn from a step's results and cost."""
        self._acceptance.observe(report)
        if report.batch_size:
            self._emitted += (1.0 + report.accepted / report.batch_size - self._emitted) / _EMITTED_STEPS
            least = report.requests * (self._cost_of_probe - 1.0) / 2  # longer drafts may gain where one token loses
            if not self._planned[0] and report.accepted > max(least, min(_CHANCE, report.requests / 8)):
                self._probes.follow(report.step)
        if report.cost is not None:
            self._costs.observe(report.cost)

    def longest_draft(self, batch_size: int) -> int:
        """Return the longest draft that is considered at this batch size."""
        return max(self._considered(batch_size))

    def status(self) -> dict[str, Any]:
        """Return what is planned and why, with the figures that decided it, as plain data."""
        length, requests, _ = self._planned
        known = self._decision
        if known is None:
            return {"why": "nothing was planned yet"}
        expected = self._acceptance.expected()
        gains = {each: float(rate / known[1][0]) for each, rate in zip(*known, strict=True)}
        return {
            "why": _why(requests, length, gains),
            "draft_length": length,
            "requests": requests,
            "predicted_speedup": {str(each): round(gain, 3) for each, gain in gains.items()},
            "tokens_per_row": {str(each): round(float(expected[each]), 3) for each in known[0]},
            "cost_error": None if self._costs.error is None else round(self._costs.error, 3),
            "costs": self._costs.basis,
        }

    def _decide(self, requests: int, stats: HostStats, present: int | None) -> int:
        """Return the draft length to plan until the next decision."""
        lengths = self._considered(requests)
        rates = self._rates(requests, stats, lengths)
        self._decision = lengths, rates
        if len(lengths) > 1:
            tokens = self._acceptance.expected()[lengths[:2]]
            self._cost_of_probe = float(tokens[1] / rates[1] * rates[0] / tokens[0])
        best = max(range(len(lengths)), key=lambda i: rates[i])
        least = GAIN_TO_KEEP if present else GAIN_TO_START
        if rates[best] < rates[0] * (1.0 + least):
            best = 0
        elif present in lengths and rates[best] < rates[lengths.index(present)] * (1.0 + _GAIN_TO_CHANGE):
            best = lengths.index(present)
        if lengths[best] != present:
            self._probes.hasten()
            if not present:  # what longer drafts cost was not worth finding out before
                self._trials.pop(size_class(requests), None)
        return lengths[best]

    def _trial(self, requests: int, stats: HostStats, trials: Counter[int]) -> int | None:
        """Return the shortest draft length whose cost at this batch size is unknown, and which might be the best.

        A step costs at least what a measured one of a shorter length does, and gains at most what is hoped for.
        """
        lengths, context = self._considered(requests), self._context(requests, stats)
        hoped = self._acceptance.expected(_OPTIMISM)
        seconds = self._costs.seconds(requests, context, _tokens(requests, lengths), lengths)
        expected = self._acceptance.expected()
        best = least = 0.0
        for length, predicted in zip(lengths, seconds.tolist(), strict=True):
            known = self._costs.measured(requests, requests * (length + 1), length)
            if known < TRIALS and trials[length] < TRIALS and (not best or hoped[length] / least > best):
                trials[length] += 1
                return length
            if known:
                best, least = max(best, expected[length] / predicted), predicted
        self._trials[size_class(requests)] = None
        return None

    def _probe(self, requests: int, stats: HostStats, present: int) -> int:
        """Return the draft length that might be better than the present one, or the present one."""
        lengths = self._considered(requests)
        if not present:
            return min(length for length in lengths if length) if len(lengths) > 1 else 0
        rates, hoped = self._rates(requests, stats, lengths), self._rates(requests, stats, lengths, _OPTIMISM)
        if self._costs.is_measured:
            counts = [self._costs.measured(requests, requests * (length + 1), length) for length in lengths]
            scatter = _SCATTER * (self._costs.error or 0.0)
            doubts = [max(_COST_DOUBT / (1.0 + count), scatter / sqrt(1.0 + count)) for count in counts]
            hoped = hoped / (1.0 - np.minimum(doubts, _COST_DOUBT))
        hoped[lengths.index(present)] = 0.0
        best = int(np.argmax(hoped))
        return lengths[best] if hoped[best] > rates[lengths.index(present)] else present

    def _rates(self, requests: int, stats: HostStats, lengths: list[int], optimism: float = 0.0) -> Array:
        """Return the expected tokens per second of the batch at each draft length."""
        tokens: Array = self._acceptance.expected(optimism)[lengths]
        expected = self._acceptance.expected()
        pace = expected[lengths] / self._emitted
        context = self._context(requests, stats)
        seconds = self._costs.seconds(requests, context, _tokens(requests, lengths), lengths, pace)
        rates: Array = requests * tokens / np.maximum.accumulate(seconds)  # no draft makes a step cheaper
        return rates

    @staticmethod
    def _context(requests: int, stats: HostStats) -> float:
        """Return the context tokens of so many requests like those of the newest step."""
        last = stats.last_step
        return 0.0 if last is None or not last.requests else last.context_tokens * requests / last.requests

    def _considered(self, requests: int) -> list[int]:
        """Return the draft lengths to choose from, ascending from 0, at most a few times the tokens that are free."""
        most = max(1, _MOST_OVER * self._options.saturation // requests - 1)
        return [length for length in self._lengths if length <= most]

    def _candidates(self) -> list[int]:
        """Return the engine's draft lengths; where it runs all at full speed, 2^n - 1 and the longest."""
        captured, most = self._caps.captured_draft_lengths, self._caps.max_draft_length
        return sorted({0, *(captured or {*[(1 << bits) - 1 for bits in range(1, most.bit_length())], most})})


def _tokens(requests: int, lengths: list[int]) -> list[int]:
    return [requests * (length + 1) for length in lengths]


def _why(requests: int, length: int, gains: dict[int, float]) -> str:
    """Return the reason for a draft length in words; `gains` are the predicted speed-ups over no drafts."""
    best = length or max(gains, key=lambda each: gains[each])
    if not best:
        return f"off: at {requests} requests no draft length is predicted to gain"
    ratio = f"{gains.get(best, 1.0):.2f}"
    gain = f"at {requests} requests {best} draft tokens are predicted to emit {ratio} times as much as none"
    return gain if length else f"off: {gain}, less than {1 + GAIN_TO_START:g} times"


class FreePlanner(Planner):
    """Plans the longest drafts whose tokens are all free: up to `saturation` tokens a step."""

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length."""
        return StepPlan(self.longest_draft(max(1, len(stats.requests))), self._options.token_budget)

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length at this batch size, the only one planned."""
        return self._caps.fit_draft_length(max(0, self._options.saturation // batch_size - 1))
