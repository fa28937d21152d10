"""Calibration of confidences.  A proposer is calibrated if a share c of its tokens of confidence c is accepted.

The Brier score (Brier 1950) is the mean squared difference between confidence and outcome: 0 is perfect, and a constant
confidence equal to the overall share of accepted tokens scores that share times its complement.  The AUC, the area
under the ROC curve, tells how well confidences rank tokens, whether calibrated or not: 1 is perfect, 0.5 is chance.
Survival probabilities are judged in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from specplug.replay.score import Calibration, Reliability

CURVE_BINS = 10
"""Bins of the curve that is printed and plotted, of equal width over [0, 1]."""

BAR_CELLS = 20


@dataclass(frozen=True, slots=True)
class Summary:
    """Calibration figures of a proposer's confidences.

    Attributes:
        tokens: draft tokens whose fate is known.
        confidence: their mean confidence.
        accepted: the share that was accepted.
        brier: the Brier score.
        constant_brier: the Brier score of giving every token the confidence `accepted`.
        gap: expected calibration error, the mean distance between confidence and acceptance over `CURVE_BINS` bins.
        auc: see `Calibration.auc`; None unless there are tokens of both outcomes.
        curve: the bins with tokens in them, ascending.
    """

    tokens: int
    confidence: float
    accepted: float
    brier: float
    constant_brier: float
    gap: float
    auc: float | None
    curve: tuple[Reliability, ...]

    @property
    def skill(self) -> float:
        """Return the Brier skill score against the constant confidence; 0 is no better, negative is worse."""
        return 1 - self.brier / self.constant_brier if self.constant_brier else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the summary ready for JSON."""
        return {
            "tokens": self.tokens,
            "confidence": self.confidence,
            "accepted": self.accepted,
            "brier": self.brier,
            "constant_brier": self.constant_brier,
            "skill": self.skill,
            "calibration_error": self.gap,
            "auc": self.auc,
            "curve": [each._asdict() for each in self.curve],
        }


def together(calibrations: Iterable[Calibration]) -> Calibration:
    """Return several workloads' calibration as one, with equal weight for every token."""
    return sum(calibrations, start=Calibration())


def summarise(calibration: Calibration) -> Summary | None:
    """Return the calibration figures, or None if no token was decided, as for drafters without confidences."""
    if not calibration.count:
        return None
    tokens, confidence, accepted, _ = calibration.sums.sum(1).tolist()
    share = accepted / tokens
    return Summary(
        tokens=round(tokens),
        confidence=confidence / tokens,
        accepted=share,
        brier=calibration.brier,
        constant_brier=share * (1 - share),
        gap=calibration.gap,
        auc=calibration.auc,
        curve=tuple(calibration.curve(CURVE_BINS)),
    )


def means(calibrations: Iterable[Calibration]) -> dict[str, float | None]:
    """Return the mean Brier score and the mean AUC of workloads, each weighing the same; None if none has tokens."""
    found = [each for each in calibrations if each.count]
    aucs = [each.auc for each in found if each.auc is not None]
    return {"brier": fmean(each.brier for each in found) if found else None, "auc": fmean(aucs) if aucs else None}


def bar(point: Reliability) -> str:
    """Return acceptance as a bar, with a mark at the confidence: `#######|##`."""
    filled = round(point.acceptance * BAR_CELLS)
    mark = min(BAR_CELLS - 1, int(point.confidence * BAR_CELLS))
    return "".join("|" if cell == mark else "#" if cell < filled else "." for cell in range(BAR_CELLS))
