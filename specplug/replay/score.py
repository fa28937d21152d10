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

import numpy as np
import numpy.typing as npt
from scipy.special import logit

BATCHES = (1, 8, 32, 64, 128, 256)
"""The batch sizes that speed-ups are shown for."""


@dataclass(frozen=True, slots=True)
class ScoringRoofline:
    """The cost of an engine's step, in plain decoding steps of a small batch.

    Attributes:
        n_sat: tokens per step up to which a step is memory-bound and its cost constant; beyond, the cost is
            proportional.
        overhead: cost of drafting per step.
    """

    n_sat: float = 256.0
    overhead: float = 0.02

    def cost(self, batch: int, verified: float) -> float:
        """Return the cost of a step of `batch` requests with `verified` draft tokens each, on average."""
        return max(1.0, batch * (verified + 1) / self.n_sat) + self.overhead


@dataclass(slots=True)
class Counts:
    """Histograms of steps.  Ratios without a denominator are 0.

    Attributes:
        histogram: (verified, accepted, emitted) -> number of steps of single requests.
        batches: for concurrent requests, (requests, verified, emitted) of whole engine steps -> number of steps; else
            empty.
    """

    histogram: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    batches: Counter[tuple[int, int, int]] = field(default_factory=Counter)

    @classmethod
    def from_rows(cls, rows: Iterable[Sequence[int]]) -> Self:
        """Build the counts from the result of `rows`."""
        return cls(Counter({(n, a, e): count for n, a, e, count in rows}))

    def rows(self) -> list[list[int]]:
        """Return [verified, accepted, emitted, steps] in ascending order, ready for JSON."""
        return [[*key, count] for key, count in sorted(self.histogram.items()) if count]

    def __add__(self, other: Counts) -> Counts:
        """Return the counts of both together."""
        return Counts(self.histogram + other.histogram, self.batches + other.batches)

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

    def speedup(self, batch: int, roofline: ScoringRoofline | None = None) -> float:
        """Return S(B), tokens emitted per cost: how much faster than plain decoding at `batch` requests.

        A request replayed alone stands for a batch of equal ones.  Concurrent requests cost what their actual batches
        cost, which can be less, because some requests leave room that others use.
        """
        roofline = ScoringRoofline() if roofline is None else roofline
        if self.batches:
            cost = sum(count * n * roofline.cost(n, drafted / n) for (n, drafted, _), count in self.batches.items())
        else:
            cost = sum(count * roofline.cost(batch, key[0]) for key, count in self.histogram.items())
        return _ratio(self.emitted, cost)


def pool(counts: Iterable[Counts]) -> Counts:
    """Return several workloads' counts as one: summed histograms, so that long outputs weigh more."""
    total = Counts()
    for each in counts:
        total.histogram.update(each.histogram)
        total.batches.update(each.batches)
    return total


def mean_speedup(counts: Iterable[Counts], batch: int, roofline: ScoringRoofline | None = None) -> float:
    """Return the geometric mean of S(B) over workloads with equal weights, skipping those without tokens."""
    values = [each.speedup(batch, roofline) for each in counts if each.emitted]
    return statistics.geometric_mean(values) if values else 0.0


class Reliability(NamedTuple):
    """One bin of a reliability curve: a calibrated proposer's tokens are kept as often as their confidence says."""

    count: int  # type: ignore[assignment]  # hides a tuple's own `count`
    confidence: float
    acceptance: float


FINE_BINS = 200
RANKS = 1 << 14
"""Bins in which confidences are ranked, of equal width in log-odds up to +-`_MOST_LOG_ODDS`."""

_MOST_LOG_ODDS = 17.0  # a float32 below 1 has log-odds of at most 16.6
_FLUSH = 8192


class Calibration:
    """Outcomes of draft tokens by stated probability: confidences, or survival probabilities.

    Attributes:
        sums: [4, FINE_BINS] float64: per bin of probability the tokens, the sum of their probabilities, those accepted,
            and the sum of squared differences between probability and outcome.
        ranks: [2, RANKS] int64: tokens that were not accepted and tokens that were, by the bin of `rank_of`.
    """

    def __init__(self, sums: npt.NDArray[np.float64] | None = None, ranks: npt.NDArray[np.int64] | None = None) -> None:
        self._sums = np.zeros((4, FINE_BINS)) if sums is None else np.array(sums, dtype=np.float64)
        self._ranks = np.zeros((2, RANKS), np.int64) if ranks is None else np.array(ranks, dtype=np.int64)
        self._confidence: list[float] = []
        self._accepted: list[bool] = []

    @property
    def sums(self) -> npt.NDArray[np.float64]:
        self._flush()
        return self._sums

    @property
    def ranks(self) -> npt.NDArray[np.int64]:
        self._flush()
        return self._ranks

    def add(self, confidence: Sequence[float], accepted: int) -> None:
        """Count tokens whose fate is known, of which the first `accepted` were kept and the others were not."""
        self._confidence += confidence
        self._accepted += [True] * accepted + [False] * (len(confidence) - accepted)
        if len(self._confidence) >= _FLUSH:
            self._flush()

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(self.sums + other.sums, self.ranks + other.ranks)

    @property
    def count(self) -> int:
        """Draft tokens whose fate is known."""
        return int(self.sums[0].sum())

    @property
    def brier(self) -> float:
        """Mean squared difference between probability and outcome; 0 when nothing was decided."""
        return _ratio(float(self.sums[3].sum()), self.count)

    @property
    def auc(self) -> float | None:
        """Probability that an accepted token was given more than one that was not, ties counting half.

        It is the area under the ROC curve, by the rank statistic of Mann and Whitney (1947).  Tokens of one bin of
        `rank_of` are ties.  None unless there are tokens of both outcomes.
        """
        rejected, accepted = self.ranks.astype(np.float64)
        pairs = float(rejected.sum() * accepted.sum())
        below = np.cumsum(rejected) - rejected / 2
        return float(accepted @ below) / pairs if pairs else None

    @property
    def gap(self) -> float:
        """Expected calibration error: mean distance of confidence and acceptance, over ten bins."""
        return _ratio(sum(b.count * abs(b.confidence - b.acceptance) for b in self.curve(10)), self.count)

    def curve(self, bins: int = 20) -> list[Reliability]:
        """Return the reliability curve without empty bins; `bins` must divide `FINE_BINS`."""
        merged = self.sums.reshape(4, bins, -1).sum(2)
        return [
            Reliability(int(count), confidence / count, accepted / count)
            for count, confidence, accepted, _ in merged.T.tolist()
            if count
        ]

    def _flush(self) -> None:
        if not self._confidence:
            return
        confidence = np.clip(np.array(self._confidence, dtype=np.float64), 0.0, 1.0)
        accepted = np.array(self._accepted, dtype=np.float64)
        place = np.minimum((confidence * FINE_BINS).astype(np.int64), FINE_BINS - 1)
        for row, weights in enumerate((None, confidence, accepted, (confidence - accepted) ** 2)):
            self._sums[row] += np.bincount(place, weights, minlength=FINE_BINS)
        rank = rank_of(confidence)
        for row in (0, 1):
            self._ranks[row] += np.bincount(rank[accepted == row], minlength=RANKS)
        self._confidence, self._accepted = [], []


def rank_of(probability: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bin of each probability among `RANKS`, fine near 0 and 1, where long drafts differ."""
    log_odds = np.clip(logit(probability), -_MOST_LOG_ODDS, _MOST_LOG_ODDS)
    places: npt.NDArray[np.int64] = np.round((log_odds / _MOST_LOG_ODDS + 1) / 2 * (RANKS - 1)).astype(np.int64)
    return places


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
