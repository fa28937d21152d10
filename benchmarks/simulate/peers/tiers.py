"""Tiers: SGLang's adaptive draft lengths for EAGLE (0.5.23, `speculative/adaptive_spec_params.py`), default settings.

Each tier of batch sizes has candidate lengths and a moving average of accepted tokens per request.  After a warm-up,
every few batches the length moves to the neighbouring candidates that the average reaches.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from benchmarks.simulate.peers.setup import PeerSetup
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.specs import PolicySpec
from specplug.types.plan import HostStats, StepPlan, StepReport

WEIGHT, INTERVAL, WARM_UP, INITIAL = 0.2, 5, 10, 3


@dataclass(slots=True)
class Tier:
    """One tier, from a batch size on.

    Attributes:
        candidates: draft lengths, ascending.
        down: added to the average below which a shorter length is chosen.
        length: the present draft length.
        average: moving average of accepted tokens per request.
        batches: number of batches seen.
    """

    candidates: tuple[int, ...]
    down: float = 0.0
    length: int = 0
    average: float = 0.0
    batches: int = 0

    def __post_init__(self) -> None:
        self.length = INITIAL if INITIAL in self.candidates else self.candidates[len(self.candidates) // 2]
        self.average = self.length - 1.0

    def update(self, accepted: float) -> None:
        """Learn from a batch whose requests accepted so many draft tokens on average."""
        if self.length:
            self.average += WEIGHT * (accepted - self.average)
        self.batches += 1
        if self.batches > WARM_UP and (self.batches - WARM_UP) % INTERVAL == 0:
            self._move()

    def _move(self) -> None:
        place, lengths = self.candidates.index(self.length), self.candidates
        if self.length == 0:  # probe the shortest draft
            self.length = lengths[min(place + 1, len(lengths) - 1)]
            if self.length and self.average < 0:
                self.average = self.length - 1.0
            return
        lower = place
        while lower and self.average <= max(lengths[lower - 1] - 0.5, 0.5 * (lengths[lower - 1] == 0)) + self.down:
            lower -= 1
        if lower == place:
            while lower < len(lengths) - 1 and self.average > lengths[lower] - 0.5:
                lower += 1
        self.length = lengths[lower]


class TiersPlanner(Planner):
    """Plans the length of the batch size's tier."""

    def __init__(self, context: PluginContext) -> None:
        self._caps = context.caps
        self._from = (1, 8, 32, 64)
        self._tiers = (Tier((1, 3, 5, 7), down=-0.25), Tier((0, 1, 3)), Tier((0, 1)), Tier((0,)))

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the present length."""
        return StepPlan(self._caps.fit_draft_length(self._tier(len(stats.requests)).length))

    def observe(self, report: StepReport) -> None:
        """Pass the accepted tokens to the tier."""
        if report.requests:
            self._tier(report.requests).update(report.accepted / report.requests)

    def _tier(self, batch_size: int) -> Tier:
        return self._tiers[max(0, bisect.bisect_right(self._from, batch_size) - 1)]


def tiers(setup: PeerSetup) -> PolicySpec:
    """Return the spec."""
    return PolicySpec(name="tiers", factory=TiersPlanner, summary="tiers of draft lengths by accepted tokens")
