"""One request that stands for B identical ones, so that a policy acts as it does in a batch of B.

The plan half is told B requests with the same figures.  The trim half is given the draft in B rows, with the budget of
the whole batch, and what it leaves of the first row is verified.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specplug.interfaces import Trimmer
from specplug.pipeline.stages import DraftStage
from specplug.replay.lean import LeanStage
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft


class RepeatedTrimmer(Trimmer):
    """Shows a trimmer one row's draft in `times` rows, and returns what it leaves of the first.

    Args:
        trimmer: of the policy.
        times: B.
        max_width: most draft tokens of a row.
        trees: whether drafts may have parents.
    """

    def __init__(self, trimmer: Trimmer, times: int, max_width: int, trees: bool) -> None:
        self._trimmer, self._times = trimmer, times
        self._buffer = Draft.allocate(times, max_width, trees=trees)
        self._views: dict[tuple[int, bool], Draft] = {}
        self._decoding = torch.ones(times, dtype=torch.bool)
        self._budget = torch.zeros((), dtype=torch.int64)

    def cuts_without_budget(self, batch_size: int, width: int) -> bool:
        """Return what the trimmer says of the whole batch."""
        return self._trimmer.cuts_without_budget(self._times, width)

    def trim(self, draft: Draft, token_budget: Tensor) -> Draft:
        """Trim `draft` [1, N] as the first of B equal rows; the budget is the one that `trim_told` has set."""
        rows = self._rows(draft)
        rows.copy_(draft)
        return self._trimmer.trim_step(rows, self._budget, self._decoding).view(1, draft.width)

    def _rows(self, draft: Draft) -> Draft:
        """Return the buffer for drafts like this one."""
        key = (draft.width, draft.parents is None)
        if key not in self._views:
            rows = replace(self._buffer.view(self._times, draft.width), sources=draft.sources)
            self._views[key] = replace(rows, parents=None) if draft.parents is None else rows
        return self._views[key]

    def trim_told(
        self, stage: DraftStage | LeanStage, batch: EngineBatch, draft: Draft, token_budget: int | None
    ) -> Draft:
        """Trim one row's draft as `stage`, whose trimmer this is, would trim it among B alike.

        `token_budget` is the whole batch's.  The stage, which sees one row, is told whether it binds, and no more.
        """
        places = self._times * draft.width
        budget = places if token_budget is None else min(max(0, token_budget), places)
        self._budget.fill_(budget)
        return stage.trim(batch, draft, 0 if budget < places else None)
