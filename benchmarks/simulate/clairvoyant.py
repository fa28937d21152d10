"""Clairvoyant: chooses drafts by knowing the surface and what each draft token's fate will be; a ceiling, no policy."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks.simulate.modes import Mode
from benchmarks.simulate.steps import Decider, StepResult, StepView
from benchmarks.simulate.surface import Surface
from benchmarks.simulate.trajectories import Array, Drafts, Trajectories
from specplug.types.step import NO_SPECULATION, StepPlan

DECAY = 0.995
"""Weight of the past in the long-run rate, per step."""


class Clairvoyant(Decider):
    """Maximises at each step the tokens emitted minus those that its time yields elsewhere, at the long-run rate.

    That maximises the long-run rate (Dinkelbach, "On nonlinear fractional programming", 1967) if one step's choice does
    not change what later drafts are worth.  Here it does: a draft token that is not verified now can be drafted again
    in the next step, so `weight` discounts draft tokens.  No single weight is best everywhere; see `judge.ceiling`.
    Plans have no lag.

    Args:
        surface, mode, trajectories: all of what is simulated.
        weight: worth of an accepted draft token, in tokens.
    """

    def __init__(self, surface: Surface, mode: Mode, trajectories: Trajectories, weight: float = 1.0) -> None:
        self._surface, self._mode, self._trajectories, self._weight = surface, mode, trajectories, weight
        self._sums: defaultdict[int, Array] = defaultdict(lambda: np.zeros(2))  # tokens and seconds, by class of B
        self._kept = np.zeros(0, np.int64)
        self._chosen = 0.0, 0.0

    def plan(self, view: StepView) -> StepPlan:
        """Return the best plan for the step."""
        if not view.rows.size:
            self._chosen = 0.0, 0.0
            return NO_SPECULATION
        drafts = self._trajectories.drafts(view.entries, self._mode.gamma)
        sums = self._sums[view.rows.size.bit_length()]
        best: tuple[float, StepPlan, float] | None = None
        for length in self._lengths():
            plan, kept = self._candidate(drafts, length)
            accepted, seconds = float(np.minimum(drafts.accepted, kept).sum()), self._seconds(view, plan, kept)
            rate = sums[0] / sums[1] if sums[1] else kept.size / seconds
            gain = self._weight * accepted - rate * seconds
            if best is None or gain > best[0]:
                best, self._kept = (gain, plan, kept.size + accepted), kept
        assert best is not None, "0 is a length"
        _, plan, tokens = best
        alone = self._seconds(view._replace(prefill_tokens=0, prefill_pairs=0), plan, self._kept)
        self._chosen = tokens, alone  # prompts take their time whatever is drafted
        return plan

    def keep(self, view: StepView, drafts: Drafts, plan: StepPlan) -> Array:
        """Return the lengths that the plan was made with."""
        return self._kept

    def observe(self, view: StepView, result: StepResult) -> None:
        """Count the rate."""
        if view.rows.size:
            sums = self._sums[view.rows.size.bit_length()]
            sums *= DECAY
            sums += self._chosen

    def _lengths(self) -> tuple[int, ...]:
        mode = self._mode
        return mode.lengths if mode.name == "padded" else tuple(range(mode.gamma + 1))

    def _candidate(self, drafts: Drafts, length: int) -> tuple[StepPlan, Array]:
        """Return the plan, and the rows' lengths, that verify at most `length` tokens of each row."""
        if self._mode.name == "padded" or not length:
            return StepPlan(length), np.minimum(drafts.lengths, length)
        kept = np.minimum(drafts.accepted, length)
        return StepPlan(self._mode.gamma if kept.any() else 0, token_budget=int(kept.sum())), kept

    def _seconds(self, view: StepView, plan: StepPlan, kept: Array) -> float:
        tokens, captured = self._mode.charge(kept, plan.draft_length, plan.token_budget)
        return self._surface.seconds(view.work(tokens, captured, plan.draft_length))
