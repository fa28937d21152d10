"""One request that stands for B identical ones, so that a policy acts as it does in a batch of B.

The plan half is told B requests with the same figures.  The trim half is given the draft in B rows, with the budget of
the whole batch, and what it leaves of the first row is verified; what became of that row it observes in B rows, too.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from specplug.interfaces import Trimmer
from specplug.pipeline.stages import DraftStage
from specplug.replay.fast_path import FastPathStage
from specplug.types.batch import BatchView, EngineBatch
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.trim import TrimLimits
from specplug.types.verdict import Verdict

T = TypeVar("T", Draft, Verdict)


class RepeatedTrimmer(Trimmer):
    """Shows a trimmer one row's draft in `times` rows, and returns what it leaves of the first.

    Args:
        trimmer: of the policy.
        times: B.
        max_draft_length: most draft tokens of a row.
        trees: whether drafts may have parents.
    """

    def __init__(self, trimmer: Trimmer, times: int, max_draft_length: int, trees: bool) -> None:
        self._trimmer, self._times = trimmer, times
        self._buffer = Draft.allocate(times, max_draft_length, trees=trees)
        self._views: dict[tuple[int, bool], Draft] = {}
        self._decoding = torch.ones(times, dtype=torch.bool)
        self._budget = torch.zeros((), dtype=torch.int64)

    @property
    def learns(self) -> bool:
        """Whether the trimmer does."""
        return self._trimmer.learns

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Show the trimmer what became of one row in B rows."""
        times = self._times
        self._trimmer.observe(batch.permute([0] * times), _repeated(draft, times), _repeated(verdict, times))

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return what the trimmer says of the whole batch."""
        return self._trimmer.cuts_without_budget(self._times, draft_length)

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Trim `draft` [1, N] as the first of B equal rows; the budget is the one that `trim_repeated` has set."""
        rows = self._rows(draft)
        rows.copy_(draft)
        return self._trimmer.trim(rows, TrimLimits(self._budget, self._decoding, limits.price)).view(
            1, draft.draft_length
        )

    def _rows(self, draft: Draft) -> Draft:
        """Return the buffer for drafts like this one."""
        key = (draft.draft_length, draft.parents is None)
        if key not in self._views:
            rows = replace(self._buffer.view(self._times, draft.draft_length), sources=draft.sources)
            self._views[key] = replace(rows, parents=None) if draft.parents is None else rows
        return self._views[key]

    def trim_repeated(
        self, stage: DraftStage | FastPathStage, batch: EngineBatch, draft: Draft, plan: StepPlan
    ) -> Draft:
        """Trim one row's draft as `stage`, whose trimmer this is, would trim it among B alike.

        The plan's budget is the whole batch's.  The stage, which sees one row, is told whether it binds, and no more.
        """
        places = self._times * draft.draft_length
        budget = places if plan.token_budget is None else min(max(0, plan.token_budget), places)
        self._budget.fill_(budget)
        return stage.trim(batch, draft, replace(plan, token_budget=0 if budget < places else None))


def _repeated(of_one: T, times: int) -> T:
    """Return a draft or verdict of one row with that row `times` times."""
    changed: dict[str, Any] = {}
    for field in fields(of_one):
        value = getattr(of_one, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value.expand(times, *value.shape[1:])
    return replace(of_one, **changed)
