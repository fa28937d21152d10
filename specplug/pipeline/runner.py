"""ProposerRunner: one proposer, run and contained: what it is handed, the buffer that it fills, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specplug.faults import FaultGuard, LateDraft
from specplug.pipeline.buffers import seen_from
from specplug.pipeline.handles import ProposerHandle
from specplug.pipeline.sanitize import sanitize
from specplug.types.batch import BatchView, EngineBatch
from specplug.types.draft import Draft
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class ProposerRunner:
    """Runs one proposer.  Whatever it does wrong costs its drafts only; nothing here raises.

    Args:
        handle: how the proposer is run: inline, or on a thread with a deadline.
        guard: its circuit breaker.
        buffer: [S, N], where its drafts lie; it is overwritten by every step.
    """

    def __init__(self, handle: ProposerHandle, guard: FaultGuard, buffer: Draft) -> None:
        self.handle, self.guard = handle, guard
        self._buffer = replace(buffer, sources=handle.sources)
        max_slots, device = buffer.batch_size, buffer.device
        self._ingested = torch.zeros(max_slots, dtype=torch.int32, device=device)
        self._generations = torch.full((max_slots,), -1, dtype=torch.int64, device=device)
        self._missed_resets: set[int] = set()
        self._closed = False

    @property
    def sources(self) -> tuple[str, ...]:
        """What `Draft.source` of its drafts points into, with the proposer's name before each."""
        return self.handle.sources

    def empty(self, batch: EngineBatch, draft_length: int) -> Draft:
        """Return the buffer, empty, for `batch`."""
        draft = self._buffer.view(batch.batch_size, draft_length)
        draft.reset(batch.lengths)
        return draft

    def ingest(self, batch: EngineBatch) -> None:
        """Hand the proposer what is new to it, in a step without drafts of its."""
        self._feed(batch, None, None)

    def draft(self, batch: EngineBatch, limits: Tensor, draft_length: int) -> Draft:
        """Hand the proposer what is new to it, and return its drafts of at most `limits` [B] tokens, safe to verify.

        Where the proposer fails, is late or sits out, the draft is empty.
        """
        draft = self.empty(batch, draft_length)
        if not self._feed(batch, limits, draft):
            draft = self.empty(batch, draft_length)  # viewed anew: a proposer can even resize its view
        sanitize(draft, limits, batch.vocab_size)
        return draft

    def observe(self, batch: EngineBatch, draft: Draft, start: int, verdict: Verdict) -> None:
        """Hand on what became of drafts, if the proposer learns.

        `start` says from where on its sources stand in `draft.sources`: it is shown no other ones.
        """
        if self.handle.caps.learns and not self.guard.is_off:
            handed, own = batch.handed(verdict.emitted, batch.reset_slots), seen_from(draft, start, self.sources)
            self.guard.call(partial(self.handle.observe, handed, own, verdict))

    def on_event(self, event: Event) -> None:
        """Hand on an event, also to a proposer that is switched off."""
        self.guard.call(partial(self.handle.on_event, event))

    def close(self) -> None:
        """Release the proposer; further calls do nothing."""
        if not self._closed:
            self._closed = True
            self.guard.call(self.handle.close)

    def _feed(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> bool:
        """Run the proposer, contained; return whether it ran well.

        Each token is handed to it once.  Those of steps that it sits out wait for it, and so do resets of slots.
        """
        slots = batch.slots.long()
        known = self._ingested[slots].masked_fill_(self._generations[slots] != batch.generations, 0)
        self._generations[slots] = batch.generations
        self._missed_resets.update(batch.reset_slots)
        if not self.guard.admits_step() or not self.guard.call(self.handle.check_ready):
            self._ingested[slots] = known
            return False
        self._ingested[slots] = batch.lengths
        handed = batch.handed((batch.lengths - known).clamp_(min=0), tuple(sorted(self._missed_resets)))
        self._missed_resets.clear()
        return self.guard.step(partial(self._step, handed, limits, draft))

    def _step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        """Let the proposer take its step.  One that never sees a text twice gets all texts anew when it failed."""
        try:
            self.handle.step(batch, limits, draft)
        except LateDraft:  # its thread has the tokens, and takes them in yet
            raise
        except BaseException:
            if self.handle.caps.incremental:
                self._ingested.zero_()
            raise
