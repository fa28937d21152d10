"""A simulated engine whose plans come one step late."""

from __future__ import annotations

import numpy as np

from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepCost, StepPlan


class LateServer:
    """Steps whose results are reported, with noise, to the planner of the next ones.

    Attributes:
        planner: the policy's plan half.
        rng: of all that is random.
        next_plan: of the next step.
    """

    def __init__(self, planner, seed, noise=0.03):
        self.planner, self.rng, self.next_plan = planner, np.random.default_rng(seed), StepPlan(0)
        self._noise = noise
        self._step, self._last, self._rests, self._is_reported = 0, None, 0, True

    def end_step(self, requests, tokens, seconds, rows, fates, runs=(), drafting_seconds=None):
        """Report the step, unless it is one of a plan of several steps that was not made for it, and plan the next."""
        length = self.next_plan.draft_length
        noisy = seconds * np.exp(self.rng.normal(0, self._noise)) * (10 if self.rng.random() < 0.003 else 1)
        if self._is_reported:
            work = requests, tokens, 1500 * requests, length, noisy
            self._last = StepCost(*work, drafting_seconds=drafting_seconds)
            self.planner.observe(StepReport.build(self._step - 1, length, rows, fates, cost=self._last, runs=runs))
        self._rests -= 1
        self._is_reported = self._rests <= 0
        if self._is_reported:
            self.next_plan = self.planner.plan(HostStats(self._step, range(requests), last_step=self._last))
            self._rests = 0 if self.next_plan.draft_length else self.next_plan.num_steps
        self._step += 1
