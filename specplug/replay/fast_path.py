"""Fast path of the draft stage for one host proposer on a CPU, in numpy instead of tensor operations.

A replay takes a million steps of one row, where the overhead of a tensor operation exceeds its work.  `DraftStage` is
the reference: a test holds the two equal, including the calls of proposers.  Counting is omitted, because a replay
counts by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.faults import LateDraft
from specplug.interfaces import Proposer
from specplug.metrics import SpecMetrics
from specplug.pipeline.draft import DraftStage
from specplug.settings.model import Settings
from specplug.types.batch import BatchView, EngineBatch
from specplug.types.draft import NO_TOKEN, Draft, chain_parents
from specplug.types.plan import StepPlan
from specplug.types.request import Event
from specplug.types.verdict import Outcome, Verdict


def can_stand_in(settings: Settings) -> bool:
    """Return whether the fast path covers the draft stage of `settings`, which must have one proposer and no trace."""
    return not settings.extra_proposers and settings.trace.path is None


class FastPathStage:
    """Wraps a `DraftStage` and avoids its tensor operations; valid only if `can_stand_in` holds.

    Each batch is proposed, trimmed and observed before the next one; there are no dummy batches, rows may always draft,
    and no grammar extends drafts.

    Args:
        stage: builds draft buffers, trims, and notifies proposers; it must not be called from elsewhere.
        max_slots: S.
    """

    def __init__(self, stage: DraftStage, max_slots: int) -> None:
        self._stage = stage
        (runner,) = stage.runners
        self._handle, self._guard = runner.handle, runner.guard
        self._newest: Draft | None = None
        self._missed_resets: set[int] = set()
        self._known = np.zeros(max_slots, dtype=np.int32)
        self._tenants = np.full(max_slots, -1, dtype=np.int64)
        self._sheets: dict[tuple[int, int], _Sheet] = {}
        self._seen: EngineBatch | None = None
        self._handed: BatchView | None = None  # the last batch, as the proposer sees it
        self._views: tuple[npt.NDArray[Any], ...] = ()

    @property
    def proposers(self) -> dict[str, Proposer]:
        """Return the proposer by its name."""
        return self._stage.proposers

    @property
    def metrics(self) -> SpecMetrics:
        """Return the faults so far; nothing else is counted."""
        return self._stage.metrics

    @torch.inference_mode()
    def propose(self, batch: EngineBatch, draft_length: int, caps: Tensor | None = None) -> Draft:
        """Do as `DraftStage.propose` does."""
        sheet = self._sheet(batch, draft_length)
        sheet.empty(self._columns(batch)[1], caps)
        if not draft_length:
            return self._stage.for_engine(sheet.draft)
        if not self._take_step(batch, sheet):
            del self._sheets[batch.batch_size, draft_length]  # the proposer may have resized its view
            sheet = self._sheet(batch, draft_length)
            sheet.empty(self._columns(batch)[1], caps)
        sheet.sanitize(batch.vocab_size, len(self._stage.sources))
        return self._stage.for_engine(sheet.draft)

    @torch.inference_mode()
    def ingest(self, batch: EngineBatch) -> None:
        """Do as `DraftStage.ingest` does."""
        self._columns(batch)
        self._take_step(batch, None)

    @torch.inference_mode()
    def trim(self, batch: EngineBatch, draft: Draft, plan: StepPlan) -> Draft:
        """Do as `DraftStage.trim` does."""
        self._newest = self._stage.cut(batch, draft, plan)
        return self._newest

    @torch.inference_mode()
    def observe(self, batch: EngineBatch, outcome: Outcome) -> Verdict:
        """Do as `DraftStage.observe` does, for the rows of the newest draft in their order."""
        assert self._newest is not None, "nothing was trimmed"
        verdict = Verdict.build(self._newest.lengths, outcome)
        self._stage.tell(batch, self._newest, verdict)
        return verdict

    def on_event(self, event: Event) -> None:
        """Do as `DraftStage.on_event` does."""
        self._stage.on_event(event)

    def close(self) -> None:
        """Do as `DraftStage.close` does."""
        self._stage.close()

    def _take_step(self, batch: EngineBatch, sheet: _Sheet | None) -> bool:
        """Run the proposer with its faults contained; return whether it succeeded."""
        handle, guard, resets = self._handle, self._guard, self._missed_resets
        resets.update(batch.reset_slots)
        slots, lengths, generations = self._columns(batch)
        self._known[slots] *= self._tenants[slots] == generations
        self._tenants[slots] = generations
        if not guard.admits_step() or not guard.call(handle.check_ready):
            return False
        handed = self._handed
        assert handed is not None
        np.maximum(lengths - self._known[slots], 0, out=handed.num_new.numpy())
        self._known[slots] = lengths
        if resets:
            handed = replace(handed, reset_slots=tuple(sorted(resets)))
            resets.clear()

        def step() -> None:
            try:
                handle.step(handed, None if sheet is None else sheet.limits, None if sheet is None else sheet.draft)
            except LateDraft:
                raise
            except BaseException:
                if handle.caps.incremental:
                    self._known[:] = 0
                raise

        return guard.step(step)

    def _columns(self, batch: EngineBatch) -> tuple[npt.NDArray[Any], ...]:
        """Return numpy views of slots, lengths and generations, cached because batches recur."""
        if batch is not self._seen:
            self._seen, self._handed = batch, batch.handed(torch.zeros_like(batch.lengths), ())
            self._views = tuple(tensor.numpy() for tensor in (batch.slots, batch.lengths, batch.generations))
        return self._views

    def _sheet(self, batch: EngineBatch, draft_length: int) -> _Sheet:
        key = (batch.batch_size, draft_length)
        sheet = self._sheets.get(key)
        if sheet is None:
            sheet = self._sheets[key] = _Sheet(self._stage.empty(batch, draft_length))
        return sheet


class _Sheet:
    """A draft buffer of B rows and N columns, and numpy views of it."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.limits = torch.zeros(draft.batch_size, dtype=torch.int32)
        self._limits = self.limits.numpy()
        self._ids, self._confidence = draft.token_ids.numpy(), draft.confidence.numpy()
        self._lengths, self._source, self._base = draft.lengths.numpy(), draft.source.numpy(), draft.base_len.numpy()
        self._parents = None if draft.parents is None else draft.parents.numpy()
        self._chain = chain_parents(draft).numpy().copy()
        self._columns = np.arange(draft.draft_length)

    def empty(self, lengths: npt.NDArray[np.int32], caps: Tensor | None) -> None:
        """Empty the draft for contexts of `lengths` [B]; every row may draft the full draft length, or its cap."""
        self._limits.fill(self.draft.draft_length)
        if caps is not None:
            np.clip(caps.numpy(), 0, self.draft.draft_length, out=self._limits)
        self._ids.fill(NO_TOKEN)
        self._confidence.fill(0.0)
        self._lengths.fill(0)
        self._source.fill(-1)
        self._base[:] = lengths
        if self._parents is not None:
            self._parents[:] = self._chain

    def sanitize(self, vocab_size: int, num_sources: int) -> None:
        """Do as `specplug.pipeline.sanitize.sanitize` does, and clear invalid sources."""
        lengths, source = self._lengths, self._source
        if not lengths.any():
            self._wipe(self._columns >= lengths[:, None])
            return
        possible = self._ids.view(np.uint32) < vocab_size  # ids below 0 are huge
        if self._parents is not None:
            possible &= (self._parents >= -1) & (self._parents <= self._chain)
        sound = np.logical_and.accumulate(possible, axis=1).sum(1, dtype=np.int32)
        np.minimum(lengths, sound, out=lengths)
        np.minimum(lengths, self._limits, out=lengths)
        np.maximum(lengths, 0, out=lengths)
        self._wipe(self._columns >= lengths[:, None])
        np.fmin(np.fmax(self._confidence, 0.0), 1.0, out=self._confidence)  # maps NaN to the bound
        source[(source >= num_sources) | (source < 0)] = -1

    def _wipe(self, outside: npt.NDArray[np.bool_]) -> None:
        self._ids[outside] = NO_TOKEN
        self._source[outside] = -1
        self._confidence[outside] = 0.0
        if self._parents is not None:
            self._parents[outside] = -1
