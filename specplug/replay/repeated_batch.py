"""Repetition of one request as B identical ones, so that a policy acts as in a batch of B.

The plan half receives B requests with the same statistics.  The trim half receives the draft in B rows, with the budget
of the whole batch, and its first row is verified; it observes that row's outcome in B rows, too.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from specplug.interfaces import Trimmer
from specplug.pipeline.draft import DraftStage
from specplug.replay.fast_path import FastPathStage
from specplug.types.batch import BatchView, EngineBatch
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.trim import TrimLimits
from specplug.types.verdict import Verdict

T = TypeVar("T", Draft, Verdict)


class RepeatedTrimmer(Trimmer):
    """Passes one row's draft to a trimmer in `times` rows, and returns the first row of the result.

    Args:
        trimmer: the policy's trimmer.
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
        """Return whether the wrapped trimmer learns."""
        return self._trimmer.learns

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Pass the outcome of one row to the trimmer in B rows."""
        times = self._times
        self._trimmer.observe(batch.permute([0] * times), _repeated(draft, times), _repeated(verdict, times))

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        """Return the trimmer's answer for the whole batch."""
        return self._trimmer.cuts_without_budget(self._times, draft_length)

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        """Trim `draft` [1, N] as the first of B equal rows, within the budget that `trim_repeated` set."""
        rows = self._rows(draft)
        rows.copy_(draft)
        whole = replace(limits, token_budget=self._budget, decoding=self._decoding)
        return self._trimmer.trim(rows, whole).view(1, draft.draft_length)

    def _rows(self, draft: Draft) -> Draft:
        """Return the buffer for drafts of this shape."""
        key = (draft.draft_length, draft.parents is None)
        if key not in self._views:
            rows = replace(self._buffer.view(self._times, draft.draft_length), sources=draft.sources)
            self._views[key] = replace(rows, parents=None) if draft.parents is None else rows
        return self._views[key]

    def trim_repeated(
        self, stage: DraftStage | FastPathStage, batch: EngineBatch, draft: Draft, plan: StepPlan
    ) -> Draft:
        """Trim one row's draft as `stage`, whose trimmer this is, would trim it among B identical rows.

        The plan's budget and prices are those of the whole batch.  The stage sees one row, and a budget of 0 makes it
        call the trimmer if one of them may bind.
        """
        places = self._times * draft.draft_length
        self._budget.fill_(plan.budget_of(places))
        return stage.trim(batch, draft, replace(plan, token_budget=0 if plan.cuts(places) else None))


def _repeated(of_one: T, times: int) -> T:
    """Return a one-row draft or verdict with that row repeated `times` times."""
    changed: dict[str, Any] = {}
    for field in fields(of_one):
        value = getattr(of_one, field.name)
        if isinstance(value, Tensor):
            changed[field.name] = value.expand(times, *value.shape[1:])
    return replace(of_one, **changed)
