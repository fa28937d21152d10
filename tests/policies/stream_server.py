"""A simulated engine whose plans come one step late, and whose drafts come from a proposer in its stream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specplug.pipeline.cpu.host_function import MOST_NEW
from specplug.runtime.stream_steps import MOST_MISSED
from specplug.types.plan import HostStats, StepCost, StepPlan, StepReport

LONGEST = 16
"""Tokens that a row gets in every step that ingests."""


class StreamLimits:
    """The backlogs that steps without drafts leave, under the limits of `specplug.runtime.stream_steps`."""

    def __init__(self):
        self._backlog, self._missed = np.zeros(0, int), 0

    def step(self, emitted, *, drafts):
        """End a step in which rows emitted so many tokens, [B]; return [B], whether they can draft for the next one."""
        if len(emitted) != len(self._backlog):
            self._backlog, self._missed = np.zeros(len(emitted), int), 0
        self._backlog += emitted
        self._missed += 1
        if drafts or self._missed >= MOST_MISSED:
            self._missed = 0
            self._ingest()
        return self._backlog == 0 if drafts else np.zeros(len(emitted), bool)

    def _ingest(self):
        left = MOST_NEW
        for row, backlog in enumerate(self._backlog):
            taken = min(backlog, max(left, LONGEST))
            self._backlog[row] -= taken
            left -= taken


@dataclass
class Fixed:
    """Plans the same limits at every step."""

    plan_: StepPlan

    def plan(self, stats):
        return self.plan_

    def observe(self, report):
        pass


class StreamServer:
    """Steps whose results are reported, with noise, to the planner of the next ones.

    Attributes:
        planner: the policy's plan half.
        rng: of all that is random.
        next_plan: of the next step.
    """

    def __init__(self, planner, seed, noise=0.03):
        self.planner, self.rng, self.next_plan = planner, np.random.default_rng(seed), StepPlan(0)
        self._noise, self._limits, self._can_draft = noise, StreamLimits(), None
        self._step, self._last, self._rests, self._is_reported = 0, None, 0, True

    def could_draft(self, requests):
        """Return [B] bool, the rows for which there may be drafts in the next step."""
        has_rows = self.next_plan.draft_length and len(self._can_draft) == requests
        return self._can_draft if has_rows else np.ones(requests, bool)

    def end_step(self, requests, tokens, seconds, emitted, rows, fates, runs=(), drafting_seconds=None):
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
        self._can_draft = self._limits.step(emitted, drafts=self.next_plan.draft_length > 0)
