"""Handles of one proposer, which runs inline on the engine's tensors, or on a host thread with a deadline."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.errors import ContractError, text_of
from specplug.faults import LateDraft
from specplug.interfaces import Proposer
from specplug.plugins.specs import ProposerSpec
from specplug.steps.job_thread import Job, JobThread, PendingEvents
from specplug.types.caps import Distribution, ProposerCaps
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, Verdict
from specplug.types.tensors import tensors_of, to_device

MOST_QUEUED = 256
"""Most jobs of a host proposer's thread that are waiting when an event is queued behind them."""


class ProposerHandle:
    """Runs one proposer inline, on the engine's tensors.  Methods raise the proposer's exceptions.

    It cannot be timed out, and on a GPU a CUDA error in the proposer is fatal to the process.  Ids outside the
    vocabulary are faults of a proposer that declares `needs_host`; those of others are only cut, by `sanitize`.

    Attributes:
        caps: the proposer's capabilities on the engine's device.
        declared: bytes on that device that the proposer and its parts have declared.
        to_allocate: declared bytes that were not yet allocated when the proposer had been built.
        sources: names that the proposer's `Draft.source` indexes.
    """

    declared = to_allocate = 0

    def __init__(self, spec: ProposerSpec, proposer: Proposer, caps: ProposerCaps) -> None:
        self.spec = spec
        self.proposer = proposer
        self.caps = caps
        self.sources = tuple(f"{spec.name}/{text_of(source)}" for source in proposer.sources) or (spec.name,)

    def check_ready(self) -> None:
        """Check that the proposer can take a step; called before each step.

        Raises:
            LateDraft: the proposer is still busy with an earlier step and must skip this one.
        """

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Ingest the batch and, if `limits` and an empty `draft` are given, fill the draft."""
        _run(self.proposer, batch, limits, draft)
        if draft is not None and self.caps.needs_host:
            _check_ids(draft, batch.vocab_size)

    def may_repeat(self) -> bool:
        """Return whether the proposer's newest step may be repeated; see `Proposer.may_repeat`."""
        return self.proposer.may_repeat()

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Pass the verdict to the proposer, which learns."""
        self.proposer.observe(batch, draft, verdict)

    def on_event(self, event: Event) -> None:
        """Pass the event to the proposer."""
        self.proposer.on_event(event)

    def close(self) -> None:
        """Release the proposer."""
        self.proposer.close()


def _run(proposer: Proposer, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
    if draft is None:
        proposer.step(batch, None, None)
        return
    shape = draft.token_ids.shape
    device = draft.device
    proposer.step(batch, limits, draft)
    if draft.token_ids.shape != shape or draft.device != device:  # `validate` compares the other tensors with it
        raise ContractError.build(
            "Draft.token_ids has been resized or moved",
            found=f"{tuple(draft.token_ids.shape)} on {draft.device}",
            expected=f"{tuple(shape)} on {device}",
        )
    draft.validate()


class HostHandle(ProposerHandle):
    """Runs a host proposer on its own thread, which receives snapshots, events and verdicts in order.

    Only `step` waits, for at most `deadline` seconds.  A late draft is dropped, and the proposer skips steps until its
    thread is free; its next step receives the tokens of the skipped steps.  Meanwhile verdicts, which carry whole
    snapshots, are dropped, and events are held back (see `PendingEvents`), as they are while the thread has
    `MOST_QUEUED` others to deliver: however many requests pass without a step, what is held is bounded by the slots.

    A deadline is local to one process: ranks may disagree on whether it was met (see `specplug.faults`).

    Args:
        deadline: in seconds; None waits as long as a draft takes.
        closing: seconds that `close` waits for the proposer before it abandons the thread.
    """

    def __init__(
        self,
        spec: ProposerSpec,
        proposer: Proposer,
        caps: ProposerCaps,
        deadline: float | None,
        *,
        closing: float = 5.0,
    ) -> None:
        super().__init__(spec, proposer, caps)
        self._deadline = deadline
        self._closing = closing
        self._worker = JobThread(f"specplug-{spec.name}")
        self._late: Future[None] | None = None
        self._pending_events = PendingEvents()
        self._own: Draft | None = None  # the proposer's buffer, reused after successful steps: see `_own_draft`
        self._unchecked: list[Future[None]] = []  # queued without waiting; the next step raises their errors

    def check_ready(self) -> None:
        if self._is_busy():
            raise LateDraft("an earlier step of it still runs")

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        self._catch_up()
        own = None if draft is None else self._own_draft(draft)
        snapshot, others = batch.to_host_with(
            [] if limits is None else [limits],
            newest_only=self.caps.incremental,
            window=1 + (0 if draft is None else draft.draft_length),
        )
        host_limits = others[0] if others else None
        job = self._worker.submit(partial(_run, self.proposer, snapshot, host_limits, own))
        wait([job], self._deadline)
        if not job.done():
            self._late = job
            self._unchecked.append(job)
            raise LateDraft(
                f"a step of it takes more than {self._deadline or 0:g} s, which faults.host_deadline_ms allows"
            )
        self._raise_unchecked()
        job.result()
        if draft is not None and own is not None:
            _check_ids(own, batch.vocab_size)
            if own.lengths.numpy().any():
                draft.copy_(_on_device(own, draft.device))
            self._own = own

    def may_repeat(self) -> bool:
        return False

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        if self._is_busy():
            return
        self._catch_up()
        host_draft = _empty_copy(draft)
        host_draft.copy_(draft)
        on_device = [getattr(verdict, name) for name in Verdict.__slots__]
        window = 1 + draft.draft_length
        snapshot, counts = batch.to_host_with(on_device, newest_only=self.caps.incremental, window=window)
        self._post(partial(self.proposer.observe, snapshot, host_draft, Verdict(*counts)))

    def on_event(self, event: Event) -> None:
        self._pending_events.add(event)
        if not self._is_busy() and sum([not job.done() for job in self._unchecked]) < MOST_QUEUED:
            self._catch_up()

    def close(self) -> None:
        """Release the proposer once its thread has finished the queued jobs.

        Raises:
            TimeoutError: the thread hangs.  It is abandoned and does not keep the process from exiting.
        """
        self._catch_up()
        self._post(self.proposer.close)
        self._worker.stop()
        if wait(self._unchecked, self._closing).not_done:
            raise TimeoutError(f"did not close within {self._closing} s; its thread is abandoned")
        self._raise_unchecked()

    def _own_draft(self, draft: Draft) -> Draft:
        """Return an empty CPU draft like `draft`, because a late job must not write into the caller's buffer."""
        own = self._own
        self._own = None
        if own is None or own.token_ids.shape != draft.token_ids.shape:
            return _empty_copy(draft)
        own.reset(draft.base_len)
        return own

    def _is_busy(self) -> bool:
        return self._late is not None and not self._late.done()

    def _catch_up(self) -> None:
        """Queue the events that were held back."""
        for event in self._pending_events.take():
            self._post(partial(self.proposer.on_event, event))

    def _post(self, job: Job) -> None:
        """Queue a job without waiting.  Of the jobs that are done, only the first failure is kept for the next step."""
        done = [each for each in self._unchecked if each.done()]
        failed = [each for each in done if each.exception() is not None]
        waiting = [each for each in self._unchecked if each not in done]
        self._unchecked = [*failed[:1], *waiting, self._worker.submit(job)]

    def _raise_unchecked(self) -> None:
        """Raise the first error of the jobs that were queued without waiting; all are done, as jobs run in order."""
        jobs = self._unchecked
        self._unchecked = []
        for job in jobs:
            job.result()


def _empty_copy(draft: Draft) -> Draft:
    """Return an empty draft on the CPU with the same tensors as `draft` and the same `base_len`."""
    full = draft.draft_logits if draft.draft_probs is None else draft.draft_probs
    own = Draft.allocate(
        draft.batch_size,
        draft.draft_length,
        trees=draft.parents is not None,
        distribution=draft.distribution,
        vocab_size=0 if full is None else full.shape[2],
        draft_vocab=draft.draft_vocab,
        sources=draft.sources,
    )
    own.base_len.copy_(draft.base_len)
    return own


def _on_device(own: Draft, device: torch.device) -> Draft:
    """Return a draft on a device, in one transfer that nothing waits for; full distributions are left to `copy_`."""
    if own.device == device or own.distribution is not Distribution.ONE_HOT:
        return own
    named: dict[str, Any] = tensors_of(own)
    named |= zip(named, to_device([*named.values()], device), strict=True)
    return replace(own, **named)


def _check_ids(draft: Draft, vocab_size: int) -> None:
    """Raise on ids outside the vocabulary: host drafts can be read, so these are reported, not silently cut."""
    ids = draft.token_ids.numpy()
    lengths = draft.lengths.numpy()
    if not lengths.any():
        return
    is_wrong = ids.view(np.uint32) >= vocab_size  # as unsigned integers, negative ids are huge
    wrong = is_wrong & (np.arange(draft.draft_length) < lengths[:, None])
    if wrong.any() or lengths.min() < 0 or lengths.max() > draft.draft_length:
        raise ContractError.build(
            "malformed draft",
            found=f"token ids {ids[wrong][:5].tolist()}, lengths {lengths[:5].tolist()}",
            expected=f"ids in [0, {vocab_size}), lengths in [0, {draft.draft_length}]",
        )


def make_handle(
    spec: ProposerSpec, proposer: Proposer, deadline: float | None, device: torch.device, *, takes_trees: bool = True
) -> ProposerHandle:
    """Return the handle that matches the proposer's declared capabilities.

    Args:
        deadline: deadline of proposers that run on threads, in seconds; None for no deadline.
        device: the device of batches and drafts.
        takes_trees: whether the engine verifies trees.
    """
    caps = spec.caps_for(device.type)
    if caps.extends and not takes_trees:
        caps = replace(caps, trees=False)
    if not caps.needs_host or (caps.inline and device.type == "cpu"):
        return ProposerHandle(spec, proposer, caps)
    return HostHandle(spec, proposer, caps, deadline)
