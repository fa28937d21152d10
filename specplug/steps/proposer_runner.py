"""ProposerRunner: runs one proposer, contains its faults, and tracks the tokens and resets that are new to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specplug.faults import FaultGuard, LateDraft
from specplug.steps.draft_buffers import with_own_sources
from specplug.steps.handles import ProposerHandle
from specplug.steps.sanitize import sanitize
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, Verdict
from specplug.types.tensors import as_array, as_tensor

Run = Callable[[EngineBatch, Tensor | None, Draft | None], None]


class ProposerRunner:
    """Runs one proposer through its handle.  A fault costs only the proposer's own drafts; no method raises.

    Attributes:
        guard: the proposer's circuit breaker.
        buffer: [S, N], the buffer of its drafts; every step overwrites it.
        ingested: [S] int32, the number of tokens in each slot that the proposer has.
        generations: [S] int64, the slots' generations that these tokens belong to.
    """

    def __init__(self, handle: ProposerHandle, guard: FaultGuard, buffer: Draft) -> None:
        self.handle = handle
        self.guard = guard
        self.sources = handle.sources
        """Names that `Draft.source` of its drafts indexes, each prefixed with the proposer's name."""
        self.buffer = replace(buffer, sources=handle.sources)
        max_slots = buffer.batch_size
        device = buffer.device
        self.ingested = torch.zeros(max_slots, dtype=torch.int32, device=device)
        self.generations = torch.full((max_slots,), -1, dtype=torch.int64, device=device)
        self._arrays = as_array(self.ingested), as_array(self.generations)
        self._view: Draft | None = None
        self._missed_resets: set[int] = set()
        self._closed = False
        self.has_failed = False
        """True if the newest call of `draft` failed, or found the proposer switched off."""

    def empty(self, batch: EngineBatch, draft_length: int) -> Draft:
        """Return the buffer, empty, for `batch`."""
        draft = self._view
        if draft is None or draft.token_ids.shape != (batch.batch_size, draft_length):
            draft = self._view = self.buffer.view(batch.batch_size, draft_length)
        draft.reset(batch.lengths)
        return draft

    def ingest(self, batch: EngineBatch) -> None:
        """Pass new tokens and resets to the proposer, in a step in which it does not draft."""
        self._feed(batch, None, None)

    def draft(self, batch: EngineBatch, limits: Tensor, draft_length: int) -> Draft:
        """Pass new tokens and resets to the proposer; return its drafts of at most `limits` [B] tokens, sanitized.

        The draft is empty if the proposer fails, is late or is switched off.
        """
        draft = self.empty(batch, draft_length)
        self.has_failed = not self._feed(batch, limits, draft)
        if self.has_failed:
            self._view = None  # a proposer can even resize its own
            draft = self.empty(batch, draft_length)
        sanitize(draft, limits, batch.vocab_size)
        return draft

    def observe(self, batch: EngineBatch, draft: Draft, start: int, verdict: Verdict) -> None:
        """Pass the verdicts on drafts to the proposer if it learns.

        `start` is the index in `draft.sources` of the proposer's first source; other sources are hidden from it.
        """
        if self.handle.caps.learns and not self.guard.is_off:
            seen = batch.with_new(verdict.emitted, batch.reset_slots)
            own = with_own_sources(draft, start, self.sources)
            self.guard.call(partial(self.handle.observe, seen, own, verdict))

    def on_event(self, event: Event) -> None:
        """Pass an event to the proposer, even if it is switched off."""
        self.guard.call(partial(self.handle.on_event, event))

    def close(self) -> None:
        """Release the proposer; further calls have no effect."""
        if not self._closed:
            self._closed = True
            self.guard.call(self.handle.close)

    def _feed(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> bool:
        """Run the proposer and contain its faults; return whether it succeeded.

        The proposer receives each token once.  The tokens and slot resets of skipped steps wait for its next step.
        """
        slots, lengths, now = map(as_array, (batch.slots, batch.lengths, batch.generations))
        ingested, generations = self._arrays
        known = ingested[slots] * (generations[slots] == now)
        generations[slots] = now
        if not self.is_ready(batch.reset_slots):
            ingested[slots] = known
            return False
        ingested[slots] = lengths
        num_new = as_tensor((lengths - known) * (lengths > known))
        return self.step(batch.with_new(num_new, self.take_resets()), limits, draft)

    def is_ready(self, reset_slots: Iterable[int]) -> bool:
        """Return whether the proposer may take a step; call once per step.  Its next step receives `reset_slots`."""
        self._missed_resets.update(reset_slots)
        return self.guard.admits_step() and self.guard.call(self.handle.check_ready)

    def may_repeat(self) -> bool:
        """Return whether the launches of the proposer's newest step may be made again instead of its next step."""
        if self.guard.is_off or self._missed_resets:
            return False
        try:
            return self.handle.may_repeat()
        except BaseException as error:  # contained, which costs nothing where there is none
            self.guard.call(partial(_raise, error))
            return False

    def note_resets(self, reset_slots: Iterable[int]) -> None:
        """Keep slots that were reset in a step without the proposer, for its next step."""
        self._missed_resets.update(reset_slots)

    def take_resets(self) -> tuple[int, ...]:
        """Return the slots that were reset since the proposer's last step."""
        if not self._missed_resets:
            return ()
        resets = tuple(sorted(self._missed_resets))
        self._missed_resets.clear()
        return resets

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None, *, run: Run | None = None) -> bool:
        """Run the proposer's step, by `run` or by the handle, and contain its faults; return whether it succeeded."""
        return self.guard.step(partial(self._step, run or self.handle.step, batch, limits, draft))

    def _step(self, run: Run, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Run a step.  If an incremental proposer raises, its next step resends every row in full."""
        try:
            run(batch, limits, draft)
        except LateDraft:  # its thread has the tokens and will still ingest them
            raise
        except BaseException:
            if self.handle.caps.incremental:
                self.ingested.zero_()
            raise


def _raise(error: BaseException) -> None:
    raise error
