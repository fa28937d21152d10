"""How the pipeline runs one proposer: inline on the engine's tensors, or on a host thread with a deadline."""

from __future__ import annotations

import abc
from concurrent.futures import Future, wait
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.faults import LateDraft
from specplug.interfaces import Proposer
from specplug.pipeline.held_back import HeldBack
from specplug.pipeline.worker import Job, Worker
from specplug.plugins.specs import ProposerSpec
from specplug.types.batch import BatchView
from specplug.types.caps import ProposerCaps
from specplug.types.draft import Draft
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class ProposerHandle(abc.ABC):
    """One proposer as the pipeline sees it.  Methods raise what the proposer raises; the pipeline contains it.

    Attributes:
        caps: what the proposer needs and offers on the engine's device.
        declared: bytes on that device that the proposer and its parts have declared.
        to_allocate: those of them that had not been taken when it was built.
    """

    declared = to_allocate = 0

    def __init__(self, spec: ProposerSpec, proposer: Proposer, caps: ProposerCaps) -> None:
        self.spec = spec
        self.proposer = proposer
        self.caps = caps

    @property
    def sources(self) -> tuple[str, ...]:
        """Names that this proposer's `Draft.source` points into."""
        return tuple(f"{self.spec.name}/{source}" for source in self.proposer.sources) or (self.spec.name,)

    def check_ready(self) -> None:
        """Ask before each step.

        Raises:
            LateDraft: the proposer is still busy with an earlier step, and has to sit this one out.
        """
        return

    @abc.abstractmethod
    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        """Ingest the batch and, when `limits` and an empty `draft` are given, fill the draft."""

    @abc.abstractmethod
    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Hand the verdict on, if the proposer learns."""

    @abc.abstractmethod
    def on_event(self, event: Event) -> None:
        """Hand the event on."""

    def close(self) -> None:
        """Release the proposer."""
        self.proposer.close()


def _run(proposer: Proposer, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
    if draft is None:
        proposer.step(batch, None, None)
    else:
        shape, device = draft.token_ids.shape, draft.device
        proposer.step(batch, limits, draft)
        if draft.token_ids.shape != shape or draft.device != device:  # what `validate` holds the other tensors to
            raise ContractError.build(
                "Draft.token_ids has been resized or moved",
                found=f"{tuple(draft.token_ids.shape)} on {draft.device}",
                expected=f"{tuple(shape)} on {device}",
            )
        draft.validate()


class DeviceHandle(ProposerHandle):
    """Runs a proposer inline, on the engine's tensors.  It cannot be timed out.

    On a GPU a CUDA error in it is fatal to the process.  Ids outside the vocabulary are cut by `sanitize`, unreported.
    """

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        _run(self.proposer, batch, limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        if self.caps.learns:
            self.proposer.observe(batch, draft, verdict)

    def on_event(self, event: Event) -> None:
        self.proposer.on_event(event)


class InlineHandle(DeviceHandle):
    """Runs a host proposer inline where the batch lies in host memory: no snapshot, no thread, no deadline."""

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        super().step(batch, limits, draft)
        if draft is not None:
            _check_ids(draft, batch.vocab_size)


class HostHandle(ProposerHandle):
    """Runs a host proposer on a thread of its own, which gets snapshots, events and verdicts in order.

    Only `step` waits, for at most `deadline` seconds.  A draft that is later is dropped, and the proposer sits out the
    steps until its thread is free again; the tokens of those steps are handed over at the next one.  Meanwhile events
    are held back, see `HeldBack`, and verdicts, which carry whole snapshots, are left out.

    A deadline is a fact of one process: ranks may disagree on whether it was met (see `specplug.faults`).

    Args:
        deadline: in seconds; None waits however long a draft takes.
        closing: seconds that `close` gives the proposer before it leaves the thread behind.
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
        self._deadline, self._closing = deadline, closing
        self._worker = Worker(f"specplug-{spec.name}")
        self._late: Future[None] | None = None
        self._held_back = HeldBack()
        self._own: Draft | None = None  # to write into, kept after steps that went well: see `_own_draft`
        self._unchecked: list[Future[None]] = []  # queued without waiting; what they raise shows at the next step

    def check_ready(self) -> None:
        if self._is_busy():
            raise LateDraft

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        self._catch_up()
        own = None if draft is None else self._own_draft(draft)
        host_limits = None if limits is None else limits.to("cpu", copy=True)
        snapshot = batch.to_host(newest_only=self.caps.incremental)
        job = self._worker.submit(partial(_run, self.proposer, snapshot, host_limits, own))
        wait([job], self._deadline)
        if not job.done():
            self._late = job
            self._unchecked.append(job)
            raise LateDraft
        self._raise_unchecked()
        job.result()
        if draft is not None and own is not None:
            _check_ids(own, batch.vocab_size)
            if own.lengths.numpy().any():
                draft.copy_(own)
            self._own = own

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        if not self.caps.learns or self._is_busy():
            return
        self._catch_up()
        host_draft = _empty_copy(draft)
        host_draft.copy_(draft)
        counts = {name: getattr(verdict, name).to("cpu", copy=True) for name in Verdict.__slots__}
        snapshot = batch.to_host(newest_only=self.caps.incremental)
        self._post(partial(self.proposer.observe, snapshot, host_draft, Verdict(**counts)))

    def on_event(self, event: Event) -> None:
        self._held_back.add(event)
        if not self._is_busy():
            self._catch_up()

    def close(self) -> None:
        """Release the proposer once its thread has done what is queued.

        Raises:
            TimeoutError: the thread hangs.  It is left behind, and does not keep the process from ending.
        """
        self._catch_up()
        self._post(self.proposer.close)
        self._worker.stop()
        if wait(self._unchecked, self._closing).not_done:
            raise TimeoutError(f"did not close within {self._closing} s; its thread is left behind")
        self._raise_unchecked()

    def _own_draft(self, draft: Draft) -> Draft:
        """Return an empty draft like `draft` on the CPU: a late job must not write into the caller's buffer."""
        own, self._own = self._own, None
        if own is None or own.token_ids.shape != draft.token_ids.shape:
            return _empty_copy(draft)
        own.reset(draft.base_len)
        return own

    def _is_busy(self) -> bool:
        return self._late is not None and not self._late.done()

    def _catch_up(self) -> None:
        """Queue the events that were held back."""
        for event in self._held_back.take():
            self._post(partial(self.proposer.on_event, event))

    def _post(self, job: Job) -> None:
        self._unchecked.append(self._worker.submit(job))

    def _raise_unchecked(self) -> None:
        """Raise the first error of the jobs that nobody waited for; all of them are done, as jobs run in order."""
        jobs, self._unchecked = self._unchecked, []
        for job in jobs:
            job.result()


def _empty_copy(draft: Draft) -> Draft:
    """Return an empty draft on the CPU with everything that `draft` has room for, and its base."""
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


def _check_ids(draft: Draft, vocab_size: int) -> None:
    """Host drafts can be looked at, so impossible ids are reported instead of cut silently."""
    ids, lengths = draft.token_ids.numpy(), draft.lengths.numpy()
    if not lengths.any():
        return
    wrong = (ids.view(np.uint32) >= vocab_size) & (
        np.arange(draft.draft_length) < lengths[:, None]
    )  # ids below 0 are huge
    if wrong.any() or lengths.min() < 0 or lengths.max() > draft.draft_length:
        raise ContractError.build(
            "malformed draft",
            found=f"token ids {ids[wrong][:5].tolist()}, lengths {lengths[:5].tolist()}",
            expected=f"ids in [0, {vocab_size}), lengths in [0, {draft.draft_length}]",
        )


def make_handle(spec: ProposerSpec, proposer: Proposer, deadline: float | None, device: torch.device) -> ProposerHandle:
    """Return the handle that the proposer's declared needs call for.

    Args:
        deadline: of proposers on threads, in seconds; None for no deadline.
        device: where batches and drafts lie.
    """
    caps = spec.caps_for(device.type)
    if not caps.needs_host:
        return DeviceHandle(spec, proposer, caps)
    if caps.inline and device.type == "cpu":
        return InlineHandle(spec, proposer, caps)
    return HostHandle(spec, proposer, caps, deadline)
