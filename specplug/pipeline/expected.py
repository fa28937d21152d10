"""What the drafts of a step are expected to yield: sums of their survival probabilities by position, and where."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.steps.draft_stage import DraftStage
from specplug.types.caps import Distribution
from specplug.types.step import Draft

UNIT = 1 << 12
"""The integer for a probability of 1: sums of integers do not depend on their order."""


def survival_sums(draft: Draft, counted: Tensor) -> Tensor:
    """Return [K + 1] int64: the rows that are `counted` [B], and the sum of their survivals by position, in `UNIT`s."""
    survival = (draft.survival() * UNIT + 0.5).long() * counted[:, None].long()
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
