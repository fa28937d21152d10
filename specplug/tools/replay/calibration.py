"""Calibration of confidences.  A proposer is calibrated if a share c of its tokens of confidence c is accepted.

The Brier score (Brier 1950) is the mean squared difference between confidence and outcome: 0 is perfect, and a constant
confidence equal to the overall share of accepted tokens scores that share times its complement.  The AUC, the area
under the ROC curve, tells how well confidences rank tokens, whether calibrated or not: 1 is perfect, 0.5 is chance.
Survival probabilities are judged in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logit


class Reliability(NamedTuple):
    """One bin of a reliability curve: a calibrated proposer's tokens are accepted as often as their confidence says."""

    count: int  # type: ignore[assignment]  # hides a tuple's own `count`
    confidence: float
    acceptance: float


CURVE_BINS = 10
"""Bins of a reliability curve, of equal width over [0, 1]."""

FINE_BINS = 200
RANKS = 1 << 14
"""Bins in which confidences are ranked, of equal width in log-odds up to +-`_MOST_LOG_ODDS`."""

_MOST_LOG_ODDS = 17.0  # a float32 below 1 has log-odds of at most 16.6


class Calibration:
    """Outcomes of draft tokens by stated probability: confidences, or survival probabilities.

    Attributes:
        sums: [4, FINE_BINS] float64: per bin of probability the tokens, the sum of their probabilities, those accepted,
            and the sum of squared differences between probability and outcome.
        ranks: [2, RANKS] int64: tokens that were not accepted and tokens that were, by the bin of `rank_of`.
    """

    def __init__(self) -> None:
        self.sums = np.zeros((4, FINE_BINS))
        self.ranks = np.zeros((2, RANKS), np.int64)

    def add(self, tokens: Sequence[tuple[float, bool]]) -> None:
        """Count tokens by their probabilities and whether they were accepted; many at a time is fastest."""
        probability, accepted = np.array(tokens, dtype=np.float64).reshape(-1, 2).T
        probability = np.clip(probability, 0.0, 1.0)
        place = np.minimum((probability * FINE_BINS).astype(np.int64), FINE_BINS - 1)
        for row, weights in enumerate((None, probability, accepted, (probability - accepted) ** 2)):
            self.sums[row] += np.bincount(place, weights, minlength=FINE_BINS)
        rank = rank_of(probability)
        for row in (0, 1):
            self.ranks[row] += np.bincount(rank[accepted == row], minlength=RANKS)

    @property
    def count(self) -> int:
        """Draft tokens whose fate is known."""
        return int(self.sums[0].sum())

    @property
    def brier(self) -> float:
        """Mean squared difference between probability and outcome; 0 when nothing was decided."""
        return float(self.sums[3].sum()) / max(self.count, 1)

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
    def error(self) -> float:
        """Expected calibration error: mean distance of probability and acceptance over the curve's bins."""
        return sum(each.count * abs(each.confidence - each.acceptance) for each in self.curve()) / max(self.count, 1)

    def curve(self) -> list[Reliability]:
        """Return the reliability curve without empty bins, ascending."""
        merged = self.sums.reshape(4, CURVE_BINS, -1).sum(2)
        return [
            Reliability(int(count), confidence / count, accepted / count)
            for count, confidence, accepted, _ in merged.T.tolist()
            if count
        ]

    def as_dict(self) -> dict[str, Any] | None:
        """Return the figures ready for JSON, or None if no token was decided.

        `constant_brier` is the score of giving every token the share that was accepted, and `skill` the Brier skill
        score against it: 0 is no better, negative is worse.
        """
        if not self.count:
            return None
        tokens, confidence, accepted, _ = self.sums.sum(1).tolist()
        share = accepted / tokens
        constant = share * (1 - share)
        return {
            "tokens": round(tokens),
            "confidence": confidence / tokens,
            "accepted": share,
            "brier": self.brier,
            "constant_brier": constant,
            "skill": 1 - self.brier / constant if constant else 0.0,
            "calibration_error": self.error,
            "auc": self.auc,
            "curve": [each._asdict() for each in self.curve()],
        }


def rank_of(probability: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the bin of each probability among `RANKS`, fine near 0 and 1, where long drafts differ."""
    log_odds = np.clip(logit(probability), -_MOST_LOG_ODDS, _MOST_LOG_ODDS)
    places: npt.NDArray[np.int64] = np.round((log_odds / _MOST_LOG_ODDS + 1) / 2 * (RANKS - 1)).astype(np.int64)
    return places


def merge_calibrations(calibrations: Iterable[Calibration]) -> Calibration:
    """Return several workloads' calibration as one, with equal weight for every token."""
    total = Calibration()
    for each in calibrations:
        total.sums += each.sums
        total.ranks += each.ranks
    return total


def means(calibrations: Iterable[Calibration]) -> dict[str, float | None]:
    """Return the mean Brier score and the mean AUC of workloads, each weighing the same; None if none has tokens."""
    found = [each for each in calibrations if each.count]
    aucs = [each.auc for each in found if each.auc is not None]
    return {"brier": fmean(each.brier for each in found) if found else None, "auc": fmean(aucs) if aucs else None}
