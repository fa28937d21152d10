"""Bandit over draft lengths after Nightjar (arXiv 2512.22420): an arm per length in each class of batch sizes.

Built from the paper's summary, not held to its algorithm: arms are lengths including 0, contexts are batch sizes, the
loss is the time per emitted token, an arm is held for a bin of steps, bins explore less and less, and switching drafts
on is charged with the profile's cost.  There is no draft model to offload.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from benchmarks.simulate.peers.setup import PeerSetup
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.specs import PolicySpec
from specplug.types.plan import HostStats, StepPlan, StepReport

WEIGHT = 0.1
"""Weight of the newest step in an arm's average."""


class Bins:
    """The arms of one class of batch sizes.

    Attributes:
        losses: average seconds per token by draft length, of those tried.
        length: the arm held in this bin.
        left: steps left in the bin.
    """

    def __init__(self, lengths: tuple[int, ...], restart: float, random: np.random.Generator) -> None:
        self._lengths, self._restart, self._random = lengths, restart, random
        self.losses: dict[int, float] = {}
        self.length, self.left = lengths[0], 0
        self._bins, self._steps = 0, 1

    def next_length(self) -> int:
        """Return the length of the next step."""
        if not self.left:
            self._choose()
        self.left -= 1
        self._steps += 1
        return self.length

    def _choose(self) -> None:
        """Begin a bin, whose size is the square root of its block's, which doubles."""
        self._bins += 1
        self.left = math.isqrt(1 << self._steps.bit_length())
        untried = [length for length in self._lengths if length not in self.losses]
        if untried or self._random.random() < 1 / math.sqrt(self._bins):
            self.length = int(self._random.choice(untried or self._lengths))
        else:
            self.length = min(self.losses, key=self._charged)

    def _charged(self, length: int) -> float:
        restarts = length > 0 and self.length == 0
        return self.losses[length] + restarts * self._restart / self.left

    def learn(self, length: int, loss: float) -> None:
        """Count the loss of a step."""
        known = self.losses.get(length, loss)
        self.losses[length] = known + WEIGHT * (loss - known)


class NightjarPlanner(Planner):
    """Plans the arm of the batch size's class."""

    def __init__(self, context: PluginContext, lengths: tuple[int, ...], restart: float, seed: int) -> None:
        self._caps, random = context.caps, np.random.default_rng(seed)
        self._bins = defaultdict[int, Bins](lambda: Bins(lengths, restart, random))

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the arm that is held."""
        bins = self._bins[len(stats.requests).bit_length()]
        return StepPlan(self._caps.fit_draft_length(bins.next_length()))

    def observe(self, report: StepReport) -> None:
        """Learn from steps without prompt tokens."""
        cost, rows = report.cost, report.requests
        if cost is None or not rows or cost.requests != rows or cost.tokens > rows * (cost.draft_length + 1):
            return
        self._bins[rows.bit_length()].learn(cost.draft_length, cost.seconds / (rows + report.accepted))


def nightjar(setup: PeerSetup) -> PolicySpec:
    """Return the spec."""
    mode, host = setup.profile.mode, setup.profile.surface.host
    restart = host.change + 64 * host.catch_up
    return PolicySpec(
        name="nightjar",
        factory=lambda context: NightjarPlanner(context, mode.lengths, restart, setup.seed),
        summary="a bandit over draft lengths in classes of batch sizes",
    )
