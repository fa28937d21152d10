"""Peers: adaptive policies of other systems, re-implemented for comparison and registered only in a simulation.

Each is a function of a `Profile` that returns a `PolicySpec`.  Unlike a policy under test, a peer receives the server's
profile, as it does in its own engine.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulate.profile import Profile
from benchmarks.simulate.survival import gate, survival
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.specs import PolicySpec
from specplug.types.plan import HostStats, StepReport
from specplug.types.step import StepPlan


class TablePlanner(Planner):
    """vLLM's `num_speculative_tokens_per_batch_size` (0.32, `config/speculative.py`): a draft length for each range.

    Each range is a power of two and gets the length with the most tokens per second on the profile: the table of an
    operator who measured everything, on the traffic to come.
    """

    def __init__(self, context: PluginContext, profile: Profile) -> None:
        middles = {digits: 3 * 2**digits // 4 or 1 for digits in range(1, 11)}  # by binary digits of the batch size
        lengths = {digits: context.caps.fit_draft_length(profile.best_length(rows)) for digits, rows in middles.items()}
        self._plans = {digits: StepPlan(length) for digits, length in lengths.items()}

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the plan of the range."""
        return self._plans[min(max(1, len(stats.requests)).bit_length(), max(self._plans))]


WEIGHT, INTERVAL, WARM_UP, INITIAL = 0.2, 5, 10, 3


@dataclass(slots=True)
class Tier:
    """One tier, from a batch size on."""

    candidates: tuple[int, ...]  # draft lengths, ascending
    down: float = 0.0  # added to the average below which a shorter length is chosen
    length: int = 0  # the present draft length
    average: float = 0.0  # moving average of accepted tokens per request
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
    """SGLang's adaptive draft lengths for EAGLE (0.5.23, `speculative/adaptive_spec_params.py`), default settings.

    Each tier of batch sizes has candidate lengths and a moving average of accepted tokens per request.  After a
    warm-up, every few batches the length moves to the neighbouring candidates that the average reaches.
    """

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


def table(profile: Profile) -> PolicySpec:
    """Return the spec of the table that is best on the profile."""
    summary = "a draft length for each range of batch sizes"
    return PolicySpec(name="table", factory=lambda context: TablePlanner(context, profile), summary=summary)


def tiers(profile: Profile) -> PolicySpec:
    """Return the spec of SGLang's tiers."""
    return PolicySpec(name="tiers", factory=TiersPlanner, summary="tiers of draft lengths by accepted tokens")


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and where it runs.

    One that decides in the worker, where drafts are verified, needs drafts that can be cut, and its plans have no lag.
    """

    build: Callable[[Profile], PolicySpec]
    in_worker: bool = False


PEERS = {
    "table": Peer(table),
    "tiers": Peer(tiers),
    "survival": Peer(survival, in_worker=True),
    "gate": Peer(gate, in_worker=True),
}
"""The peers by name."""
