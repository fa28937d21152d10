"""DraftReport: what the drafts of a step are expected to yield, and how often an engine's own drafter is of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.steps.draft_stage import DraftStage
from specplug.types.caps import Distribution
from specplug.types.paths import survival_in_rounds
from specplug.types.step import Draft

UNIT = 1 << 12
"""The integer for a probability of 1: sums of integers do not depend on their order."""


def survival_sums(draft: Draft, counted: Tensor) -> Tensor:
    """Return [K + 1] int64: the rows that are `counted` [B], and the sum of their survivals by position, in `UNIT`s."""
    if draft.parents is None:
        reached = draft.survival()
    else:
        reached = survival_in_rounds(torch.where(draft.mask(), draft.confidence, 0.0), draft.parents)
    survival = (reached * UNIT + 0.5).long() * counted[:, None].long()
    return torch.cat((counted.long().sum(0, keepdim=True), survival.sum(0)))


def may_report(stage: DraftStage) -> bool:
    """Return whether steps can report what drafts are expected to yield, for which they draft more than is planned.

    They cannot where a token of a draft may cost a pass of a model: where there are several proposers, or one that
    reads more than the newest tokens or states distributions.  Nor can they where lookup continues the drafts of
    the engine's own drafter, which are as long as planned.
    """
    first, *others = stage.runners
    caps = first.handle.caps
    is_cheap = caps.incremental and caps.distribution is Distribution.ONE_HOT
    return is_cheap and not others and not stage.engine_tokens


PATIENCE = 2
TRIED_EVERY = 16
"""Steps in a row without any of the engine's tokens in the drafts, after which its drafter drafts one token only, and
the steps after which it drafts all once more."""


class DraftReport:
    """Figures of one step's drafts, to be read, or pickled, once the step has run: nothing waits for them.

    Args:
        sums: [K + 1] int64, which the step sets: the result of `survival_sums`; by default that of no drafts.
    """

    def __init__(self, sums: Sequence[int] | npt.NDArray[np.int64] | Tensor = (0,)) -> None:
        self._sums = sums

    @classmethod
    def of(cls, rows: int, expected: Sequence[float]) -> DraftReport:
        """Return the report of these figures."""
        return cls([rows, *[round(value * UNIT) for value in expected]])

    def read(self) -> DraftReport:
        """Return the figures as they are now: the memory of a step is used again."""
        return self if isinstance(self._sums, Sequence) else DraftReport(self._sums.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return DraftReport, (self.read()._sums,)

    @property
    def expected(self) -> list[float] | None:
        """See `StepReport.expected`; None if the step does not report it, or no row could draft."""
        return [int(value) / UNIT for value in self._sums[1:]] if self.expected_rows else None

    @property
    def expected_rows(self) -> int:
        """The rows of `expected`: those that sampled, may draft and have not ended."""
        return int(self._sums[0])


NO_DRAFTS = DraftReport()
"""The report of a step of which nothing is known."""


def engine_tokens_after(unused: int, longest: int) -> int:
    """Return how many of at most `longest` tokens an engine's own drafter should draft in the next step.

    The first one costs no pass of its own: the pass that drafts it also keeps the drafter's key-value cache in step.
    The others are left out while lookup's drafts take their place, as they did in the last `unused` steps.
    """
    is_idle = unused >= PATIENCE and unused % TRIED_EVERY
    return min(1, longest) if is_idle else longest
