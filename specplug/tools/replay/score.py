"""Counts of a replay, and the figures derived from them.

A step verifies n draft tokens (nodes of a tree), accepts a of them (for a tree, along its best path) and emits
e = min(a + 1, the rest of the output).  All other figures derive from the histogram of (n, a, e).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from specplug.tools.replay.calibration import Calibration


class Offer(NamedTuple):
    """Draft of one request that is verified at one step, with a confidence for each token.

    A tree's nodes come after their `parents`, which are -1 for those that follow the context.
    """

    token_ids: Sequence[int]
    confidence: Sequence[float] = ()
    parents: Sequence[int] | None = None

    def accepted(self, target: Sequence[int]) -> int:
        """Return the number of draft tokens that match the target's next tokens; for a tree, along its best path."""
        if self.parents is not None:
            return _deepest(self.token_ids, self.parents, target)
        count = 0
        for drafted, emitted in zip(self.token_ids, target, strict=False):
            if drafted != emitted:
                break
            count += 1
        return count


NO_DRAFT = Offer(())


def _deepest(token_ids: Sequence[int], parents: Sequence[int], target: Sequence[int]) -> int:
    depths = {-1: 0}
    best = 0
    stop = len(target)
    for node, (drafted, parent) in enumerate(zip(token_ids, parents, strict=True)):
        depth = depths.get(parent, stop)
        if depth < stop and target[depth] == drafted:
            depths[node] = depth + 1
            best = max(best, depth + 1)
    return best


@dataclass(frozen=True, slots=True)
class ScoringRoofline:
    """The cost of an engine's step, in plain decoding steps of a small batch, with a constant `overhead` for drafting.

    Up to `n_sat` tokens a step is memory-bound and its cost constant; beyond, the cost is proportional.
    """

    n_sat: float = 256.0
    overhead: float = 0.02

    def cost(self, batch: int, verified: float) -> float:
        """Return the cost of a step of `batch` requests with `verified` draft tokens each, on average."""
        return max(1.0, batch * (verified + 1) / self.n_sat) + self.overhead


@dataclass(slots=True)
class StepCounts:
    """Histogram of steps by (verified, accepted, emitted).  Ratios without a denominator are 0."""

    histogram: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> Self:
        """Build the counts from the result of `rows`."""
        return cls(Counter({(n, a, e): count for n, a, e, count in rows}))

    def rows(self) -> list[list[int]]:
        """Return [verified, accepted, emitted, steps] in ascending order, ready for JSON."""
        return [[*key, count] for key, count in sorted(self.histogram.items()) if count]

    @property
    def steps(self) -> int:
        """Target steps."""
        return sum(self.histogram.values())

    @property
    def verified(self) -> int:
        """Draft tokens that steps verified."""
        return sum(key[0] * count for key, count in self.histogram.items())

    @property
    def accepted(self) -> int:
        """Draft tokens accepted, bonus excluded."""
        return sum(key[1] * count for key, count in self.histogram.items())

    @property
    def emitted(self) -> int:
        """Tokens emitted, bonus included."""
        return sum(key[2] * count for key, count in self.histogram.items())

    @property
    def tau(self) -> float:
        """Mean acceptance length: tokens emitted per target step, bonus included."""
        return _ratio(self.emitted, self.steps)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / verified."""
        return _ratio(self.accepted, self.verified)

    @property
    def drafts_per_step(self) -> float:
        """Draft tokens verified per step."""
        return _ratio(self.verified, self.steps)

    @property
    def waste(self) -> float:
        """Draft tokens verified and rejected, per token emitted."""
        return _ratio(self.verified - self.accepted, self.emitted)

    def speedup(self, batch: int, roofline: ScoringRoofline = ScoringRoofline()) -> float:
        """Return S(B), tokens emitted per cost, in a batch of `batch` equal requests."""
        cost = sum(count * roofline.cost(batch, key[0]) for key, count in self.histogram.items())
        return _ratio(self.emitted, cost)


@dataclass(slots=True)
class Result:
    """Result of a replay.

    Attributes:
        calibration: confidences of the tokens whose acceptance was decided: the accepted ones and the first rejected
            one of each draft.  Empty for trees.
        survival: survival probabilities of all tokens whose fate the recorded output shows, also those after a rejected
            one, which are not accepted either.
        seconds: time spent in plan, propose, trim and observe, including events.
        memory: most bytes that the proposer reported to hold; None if it does not report.
        faults: counts of plug-ins' faults, by plug-in and kind.  Faults distort the other counts.
    """

    counts: StepCounts = field(default_factory=StepCounts)
    calibration: Calibration = field(default_factory=Calibration)
    survival: Calibration = field(default_factory=Calibration)
    items: int = 0
    seconds: float = 0.0
    memory: int | None = None
    faults: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def microseconds_per_step(self) -> float:
        """Mean time of a step of one request outside the target, in microseconds."""
        return 1e6 * self.seconds / self.counts.steps if self.counts.steps else 0.0


PLAIN = StepCounts.from_rows([(0, 0, 1, 1)])
"""Plain decoding: every step verifies nothing and emits one token."""


def pool(counts: Iterable[StepCounts]) -> StepCounts:
    """Return several workloads' counts as one: summed histograms, so that long outputs weigh more."""
    total = StepCounts()
    for each in counts:
        total.histogram.update(each.histogram)
    return total


def mean_speedup(counts: Iterable[StepCounts], batch: int, roofline: ScoringRoofline = ScoringRoofline()) -> float:
    """Return the geometric mean of S(B) over workloads with equal weights, skipping those without tokens."""
    values = [each.speedup(batch, roofline) for each in counts if each.emitted]
    return statistics.geometric_mean(values) if values else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
