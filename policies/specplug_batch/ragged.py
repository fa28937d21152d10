"""The plan half where each draft token has a cost of its own: prices, which the trim half compares with confidences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specplug.cost import StepCosts, entry_and_prices
from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import NO_SPECULATION, HostStats, StepCost, StepPlan, StepReport
from specplug_batch.gains import (
    DECIDE_EVERY,
    DOES_NOT_PAY,
    EARLY,
    GAIN_TO_KEEP,
    GAIN_TO_START,
    LIKE,
    TRIALS,
    Probes,
    SpeedUps,
    size_class,
)
from specplug_batch.options import BatchOptions

_TOKENS_PER_ROW = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
"""Draft tokens per row at which the cost of a step is predicted."""

_DISCOUNT = 0.5
"""Share of the prices that a probe states, so that it verifies more and shows what that costs."""


_IDLE = 0.01
"""Share of a step that drafting may take, or lose, and go on without a gain: where tokens are verified only if they are
worth it, an engine whose steps hardly take longer while none are can wait for drafts that are.
"""

_NEWEST, _LEAST = 1 / 16, 1e-9
"""Weight of the newest step in the share of a step that drafting takes, and the fewest seconds to divide by."""

_ALIKE = 12.0
"""Most measurements that make a mean surer: those of nearby steps are disturbed alike."""

_SURE = 2.0
"""Multiple of the prices at which such an engine verifies while drafts have lost, instead of not drafting."""


class RaggedPlanner(Planner):
    """Plans drafts as long as they can pay, and the prices that their tokens have to be worth.

    The time of a token would yield tokens elsewhere, at the server's long-run rate.  It is learnt as a speed-up over
    plain decoding, and taken for at least 1, so no token is verified that plain decoding would beat.

    Step costs are learnt, too, where the engine measures steps; then drafts are made only while they gain.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: BatchOptions = context.options or BatchOptions()
        self._caps = context.caps
        self._costs, self._gains, self._probes = StepCosts(self._options.cost), SpeedUps(), Probes()
        self._trials: Counter[tuple[int, bool]] = Counter()  # steps of `_trial`, by class of batch sizes
        self._is_on = self._is_hopeful = True
        self._is_free = False  # whether drafting alone makes no step longer
        self._drafting: float | None = None  # its share of a step, where the engine can tell
        self._plan, self._requests, self._step = NO_SPECULATION, 0, 0  # the newest decision
        self._observed = 0  # the step of the newest report with drafts
        self._context = 0.0  # context tokens per request
        self._curve = np.zeros(1), np.ones(1)  # the newest: draft tokens per request, cost relative to none

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the draft length, the budget of the settings, and the prices."""
        requests = max(1, len(stats.requests))
        if stats.last_step is not None and stats.last_step.requests:
            self._context = stats.last_step.context_tokens / stats.last_step.requests
        is_new = abs(requests - self._requests) > LIKE * self._requests
        if is_new or stats.step - self._step >= DECIDE_EVERY or stats.step < EARLY:
            self._decide(requests)
            self._requests, self._step = requests, stats.step
        if not self._costs.is_measured:
            return self._plan
        if (trial := self._trial(requests)) is not None:
            return trial
        resumes, cost = (0, 1.0) if self._is_on else (requests, float(self._curve[1][0]))
        added = max(0.0, cost - 1.0) if self._drafting is None else self._drafting
        if self._probes.is_due(stats.step, resumes=resumes, cost=cost, added=added):
            return self._probe(requests)
        if self._plan.draft_length or stats.step < EARLY:
            return self._plan
        return StepPlan(0, num_steps=self._probes.rest(stats.step), why=DOES_NOT_PAY)

    def calibrate(self, costs: Sequence[StepCost]) -> None:
        """Start from costs that the engine profiled."""
        self._costs.calibrate(costs)

    def observe(self, report: StepReport) -> None:
        """Learn from a step's results and cost."""
        if report.cost is not None:
            self._costs.observe(report.cost)
        if not report.draft_length or not report.requests:
            return
        requests, verified = report.requests, report.verified
        if report.cost is not None and report.cost.drafting_seconds is not None:
            share = report.cost.drafting_seconds / max(report.cost.seconds, report.cost.drafting_seconds, _LEAST)
            self._drafting = share if self._drafting is None else self._drafting + _NEWEST * (share - self._drafting)
        if report.cost is not None:  # what was run, which may be more or less than what the planner's process knows
            verified = report.cost.tokens - report.cost.requests - report.cost.prompt_tokens
        tokens = 1.0 + report.accepted / requests
        if self._costs.is_measured and report.step == EARLY:
            self._gains.forget()  # the first prices were those of assumed costs
        cost = max(float(np.interp(verified / requests, *self._curve)), 1.0)  # no draft makes a step cheaper
        share, steps = requests / report.batch_size, report.step - self._observed
        self._gains.observe(report.batch_size, tokens, cost, share=share, steps=steps)
        self._observed = report.step
        if not self._is_on:
            self._is_hopeful = tokens > cost
            if self._is_hopeful:
                self._probes.follow(report.step)

    def longest_draft(self, batch_size: int) -> int:
        """Return the draft length, the only one planned but 0."""
        return self._caps.max_draft_length

    def status(self) -> dict[str, Any]:
        """Return what is planned and why, with the figures that decided it, as plain data."""
        if not self._requests:
            return {"why": "nothing was planned yet"}
        return {
            "why": self._why(),
            "requests": self._requests,
            "draft_length": self._plan.draft_length,
            "speed_up": round(self._gains.speed_up(self._requests), 3),
            "prices": [[round(price.survival, 4), price.after] for price in self._plan.prices],
            "cost_error": None if self._costs.error is None else round(self._costs.error, 3),
            "costs": self._costs.basis,
        }

    def _trial(self, requests: int) -> StepPlan | None:
        """Return a plan without drafts, or with few, if the cost of such a step was not measured at this batch size.

        Other steps seldom show these costs, from which all prices follow.
        """
        few = max(1, requests // 2)
        for plan, tokens in ((NO_SPECULATION, 0), (StepPlan(self.longest_draft(requests), few), few)):
            key = size_class(requests), tokens > 0
            measured = self._costs.measured(requests, requests + tokens, plan.draft_length)
            if self._trials[key] < TRIALS and measured < TRIALS:
                self._trials[key] += 1
                return plan
        return None

    def _decide(self, requests: int) -> None:
        """Decide whether to draft, and set the prices."""
        if self._costs.is_measured and self._gains.is_known(requests):
            least = GAIN_TO_KEEP if self._is_on else GAIN_TO_START
            if self._is_on and self._is_free:
                least = -_IDLE
            is_on = self._gains.speed_up(requests) >= 1.0 + least
            if is_on is not self._is_on:
                self._probes.hasten()
            self._is_on = is_on
        plan = self._priced(requests)
        if not self._is_on:
            plan = self._priced(requests, _SURE) if self._is_free else NO_SPECULATION
        self._plan = plan

    def _probe(self, requests: int) -> StepPlan:
        """Return a plan that verifies more than the present one, but of hopeless drafts little.

        That is one token a row, or, as one alone never yields an entry, what is sure to.
        """
        if self._is_on:
            return self._priced(requests, _DISCOUNT)
        plan = self._priced(requests)
        if self._is_hopeful:
            return plan
        return self._priced(requests, _SURE) if plan.entry else replace(plan, token_budget=requests)

    def _priced(self, requests: int, share: float = 1.0) -> StepPlan:
        """Return a plan with drafts, for this share of the prices."""
        length = self.longest_draft(requests)
        free = self._options.saturation - requests
        most = requests * length
        extra = {0, most, *([free] if 0 < free < most else []), *(round(each * requests) for each in _TOKENS_PER_ROW)}
        grid = sorted(each for each in extra if each <= most)
        tokens, lengths = [requests, *(requests + each for each in grid)], [0, *[length] * len(grid)]
        found = self._costs.seconds_beside_prompts(requests, self._context * requests, tokens, lengths)
        plain, *seconds = found.tolist()
        self._is_free = self._drafts_for_free(requests, length, seconds[0] / plain)
        if self._is_free:
            plain = seconds[0]
        rate = requests / plain * max(1.0, self._gains.speed_up(requests))
        self._curve = np.array(grid) / requests, np.array(seconds) / plain
        entry, prices = entry_and_prices(grid, seconds, rate * (1.0 + self._options.margin) * share)
        return StepPlan(length, self._options.token_budget, prices=prices, entry=entry)

    def _drafts_for_free(self, requests: int, length: int, ratio: float) -> bool:
        """Return whether drafting alone makes no step longer, which `ratio` estimates from the durations of steps."""
        if self._drafting is not None:
            return self._drafting <= _IDLE
        steps = [self._costs.measured(requests, requests, each) for each in (0, length)]
        deviation = (self._costs.error or 0.0) * math.sqrt(sum(1.0 / min(max(1.0, each), _ALIKE) for each in steps))
        return ratio <= 1.0 + _IDLE + (1.0 + 1.0 / requests) * deviation  # one request more decides among few

    def _why(self) -> str:
        """Return the reason for the plan in words."""
        speed_up = f"{self._gains.speed_up(self._requests):.2f}"
        gain = f"at {self._requests} requests decoding with drafts emits {speed_up} times as much as without"
        if not self._is_on:
            return f"off: {gain}, less than {1 + GAIN_TO_START:g} times"
        least = min([price.survival for price in self._plan.prices], default=0.0)
        return f"{gain}; tokens of probability {least:.2f} and more are verified"
