"""The draft stage for one host proposer on a CPU, with plain numpy where `DraftStage` computes on the engine's device.

A replay takes a million steps of one row, where each tensor operation costs more than what it computes.  This stage
does what `DraftStage` does, which is its reference: a test holds them equal, calls of proposers included.  Counting is
left out, because a replay counts itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.metrics import SpecMetrics
from specplug.pipeline.containment import LateDraft
from specplug.pipeline.inflight import Taken
from specplug.pipeline.stages import DraftStage
from specplug.types.batch import BatchView
from specplug.types.draft import NO_TOKEN, Draft, chain_parents
from specplug.types.verdict import Verdict


class LeanStage(DraftStage):
    """A `DraftStage` whose batches are observed before the next one is proposed, and whose rows may always draft."""

    @classmethod
    def around(cls, stage: DraftStage) -> Self | None:
        """Return a lean stage in place of `stage`, which is not to be used any more; None where it cannot stand in."""
        if len(stage._lanes) != 1 or stage._trace is not None:
            return None
        lean = cls.__new__(cls)
        lean.__dict__.update(stage.__dict__)
        lean._in_flight = _NewestDraft()  # type: ignore[assignment]
        lean.metrics = _Uncounted(stage.metrics)  # type: ignore[assignment]
        slots = stage._generations.shape[0]
        lean._known = np.zeros(slots, dtype=np.int32)
        lean._tenants = np.full(slots, -1, dtype=np.int64)
        lean._sheets = {}
        return lean

    _seen: BatchView | None = None
    _views: tuple[npt.NDArray[Any], ...]
    _known: npt.NDArray[np.int32]
    _tenants: npt.NDArray[np.int64]
    _sheets: dict[tuple[int, int], _Sheet]

    @torch.inference_mode()
    def propose(self, batch: BatchView, width: int, caps: Tensor | None = None) -> Draft:
        """Do as `DraftStage.propose` does.  `batch.num_new` is written to while the proposer looks at it."""
        sheet = self._sheet(batch, width)
        sheet.empty(self._columns(batch)[1], caps)
        if not self._take_step(batch, sheet if width else None) and width:
            del self._sheets[batch.batch_size, width]  # a proposer can even resize its view
            sheet = self._sheet(batch, width)
            sheet.empty(self._columns(batch)[1], caps)
        if width:
            sheet.sanitize(batch.vocab_size, len(self.sources))
        return self._for_engine(sheet.draft)

    def _take_step(self, batch: BatchView, sheet: _Sheet | None) -> bool:
        """Run the proposer, contained; return whether it ran well."""
        handle, guard = self._lanes[0]
        resets = self._missed_resets[0]
        resets.update(batch.reset_slots)
        slots, lengths, generations, num_new = self._columns(batch)
        self._known[slots] *= self._tenants[slots] == generations
        self._tenants[slots] = generations
        if not guard.admits_step() or not guard.call(handle.check_ready):
            return False
        np.maximum(lengths - self._known[slots], 0, out=num_new)
        self._known[slots] = lengths
        if resets:
            batch = replace(batch, reset_slots=tuple(sorted(resets)))
            resets.clear()

        def step() -> None:
            try:
                handle.step(batch, None if sheet is None else sheet.limits, None if sheet is None else sheet.draft)
            except LateDraft:
                raise
            except Exception:
                if handle.spec.caps.incremental:
                    self._known[:] = 0
                raise

        went_well = guard.step(step)
        num_new.fill(0)
        return went_well

    def _columns(self, batch: BatchView) -> tuple[npt.NDArray[Any], ...]:
        """Return numpy views of slots, lengths, generations and num_new; batches come again and again."""
        if batch is not self._seen:
            self._seen = batch
            self._views = tuple(
                tensor.numpy() for tensor in (batch.slots, batch.lengths, batch.generations, batch.num_new)
            )
        return self._views

    def _sheet(self, batch: BatchView, width: int) -> _Sheet:
        key = (batch.batch_size, width)
        sheet = self._sheets.get(key)
        if sheet is None:
            sheet = self._sheets[key] = _Sheet(self._buffers.part(0, batch, width))
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
        self._columns = np.arange(draft.width)

    def empty(self, lengths: npt.NDArray[np.int32], caps: Tensor | None) -> None:
        """Empty the draft, for contexts of `lengths` [B]; every row may draft the whole width, or its cap."""
        self._limits.fill(self.draft.width)
        if caps is not None:
            np.clip(caps.numpy(), 0, self.draft.width, out=self._limits)
        self._ids.fill(NO_TOKEN)
        self._confidence.fill(0.0)
        self._lengths.fill(0)
        self._source.fill(-1)
        self._base[:] = lengths
        if self._parents is not None:
            self._parents[:] = self._chain

    def sanitize(self, vocab_size: int, num_sources: int) -> None:
        """Do as `specplug.pipeline.sanitize.sanitize` does, and forget sources that there are not."""
        lengths, source = self._lengths, self._source
        if not lengths.any():
            source.fill(-1)
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
        np.fmin(np.fmax(self._confidence, 0.0), 1.0, out=self._confidence)  # of a number and NaN, the number
        source[(lengths == 0) | (source >= num_sources) | (source < 0)] = -1

    def _wipe(self, outside: npt.NDArray[np.bool_]) -> None:
        self._ids[outside] = NO_TOKEN
        self._confidence[outside] = 0.0
        if self._parents is not None:
            self._parents[outside] = -1


class _NewestDraft:
    """The draft of the step in progress, in the order of its rows: it is observed before there is another."""

    is_empty = False

    def __init__(self) -> None:
        self._draft: Draft | None = None

    def put(self, batch: BatchView, draft: Draft, num_running: int) -> None:
        """Remember `draft`."""
        self._draft = draft

    def take(self, batch: BatchView, emitted: Tensor) -> Taken:
        """Return it."""
        assert self._draft is not None
        return Taken(batch.slots, self._draft.lengths, self._draft.source)

    def drafts(self, batch: BatchView, emitted: Tensor, taken: Taken, sources: tuple[str, ...]) -> Draft:
        """Return it with its tokens."""
        assert self._draft is not None
        return self._draft


class _Uncounted:
    """Counts faults only, in the metrics that guards know."""

    def __init__(self, metrics: SpecMetrics) -> None:
        self.fault, self.snapshot = metrics.fault, metrics.snapshot

    def record(self, source: Tensor, verdict: Verdict) -> None:
        """Count nothing."""
