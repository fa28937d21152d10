"""How the pipeline runs one proposer: inline on the device, or on a host thread with a deadline."""

from __future__ import annotations

import abc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial

from torch import Tensor

from specplug.containment import LateDraft
from specplug.errors import ContractError
from specplug.interfaces import Proposer
from specplug.specs import ProposerSpec
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class ProposerHandle(abc.ABC):
    """One proposer as the pipeline sees it.  Methods raise what the proposer raises; the pipeline contains it."""

    def __init__(self, spec: ProposerSpec, proposer: Proposer) -> None:
        self.spec = spec
        self.proposer = proposer

    @property
    def sources(self) -> tuple[str, ...]:
        """Names that this proposer's `Draft.source` points into."""
        return tuple(f"{self.spec.name}/{source}" for source in self.proposer.sources) or (self.spec.name,)

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
    proposer.ingest(batch)
    if limits is not None and draft is not None:
        proposer.propose(batch, limits, draft)
        draft.validate()


class DeviceHandle(ProposerHandle):
    """Runs a device proposer inline.  It cannot be timed out; a CUDA error in it is fatal to the process."""

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        _run(self.proposer, batch, limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        if self.spec.caps.learns:
            self.proposer.observe(batch, draft, verdict)

    def on_event(self, event: Event) -> None:
        self.proposer.on_event(event)


class HostHandle(ProposerHandle):
    """Runs a host proposer on a thread of its own, which sees snapshots in order.

    A step waits for at most `deadline` seconds.  A draft that is later is dropped, and while the thread is still busy
    with it, the following steps only queue their new tokens: nothing is missed, nothing waits.
    """

    def __init__(self, spec: ProposerSpec, proposer: Proposer, deadline: float | None) -> None:
        super().__init__(spec, proposer)
        self._deadline = deadline
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"specplug-{spec.name}")
        self._late: Future[None] | None = None

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        snapshot = batch.to_host()
        if self._late is not None and not self._late.done():
            self._thread.submit(_run, self.proposer, snapshot, None, None)
            raise LateDraft
        late, self._late = self._late, None
        if late is not None and (error := late.exception()) is not None:
            raise error
        own = None if draft is None else _like(draft)  # a late job goes on writing: never into the caller's buffer
        job = self._thread.submit(_run, self.proposer, snapshot, None if limits is None else limits.cpu(), own)
        try:
            job.result(self._deadline)
        except FutureTimeout:
            if job.done():  # the proposer itself raised a TimeoutError
                raise
            self._late = job
            raise LateDraft from None
        if draft is not None and own is not None:
            _check_ids(own, snapshot.vocab_size)
            draft.copy_(own)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        if self.spec.caps.learns:
            host = Draft.allocate(draft.batch_size, draft.width, trees=draft.parents is not None)
            host.copy_(draft)
            counts = Verdict(*(getattr(verdict, name).cpu() for name in Verdict.__slots__))
            self._post(partial(self.proposer.observe, batch.to_host(), host, counts))

    def on_event(self, event: Event) -> None:
        self._post(partial(self.proposer.on_event, event))

    def _post(self, action: Callable[[], None]) -> None:
        """Queue an action; an idle thread's queue is empty at once, so errors show at the call in the usual case."""
        job = self._thread.submit(action)
        if self._late is None:
            try:
                job.result(self._deadline)
            except FutureTimeout:
                if job.done():
                    raise
                self._late = job
                raise LateDraft from None

    def close(self) -> None:
        """Let the thread finish what it has queued, unless it hangs, and release the proposer."""
        job = self._thread.submit(self.proposer.close)
        self._thread.shutdown(wait=False, cancel_futures=False)
        job.result(timeout=None if self._deadline is None else max(1.0, 10 * self._deadline))


def _like(draft: Draft) -> Draft:
    full = draft.draft_logits if draft.draft_probs is None else draft.draft_probs
    own = Draft.allocate(
        draft.batch_size,
        draft.width,
        trees=draft.parents is not None,
        distribution=draft.distribution,
        vocab_size=0 if full is None else full.shape[2],
        sources=draft.sources,
    )
    own.base_len.copy_(draft.base_len)
    return own


def _check_ids(draft: Draft, vocab_size: int) -> None:
    """Host drafts can be looked at, so impossible ids are reported instead of cut silently."""
    ids = draft.token_ids[draft.mask()]
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.numel() or bool((draft.lengths > draft.width).any()):
        raise ContractError.build(
            "malformed draft",
            found=f"token ids {wrong[:5].tolist()}, lengths {draft.lengths.tolist()[:5]}",
            expected=f"ids in [0, {vocab_size}), lengths <= {draft.width}",
        )


def make_handle(spec: ProposerSpec, proposer: Proposer, deadline: float | None) -> ProposerHandle:
    """Return the handle that the proposer's declared needs call for; `deadline` in seconds, None for no deadline."""
    if spec.caps.needs_host:
        return HostHandle(spec, proposer, deadline)
    return DeviceHandle(spec, proposer)
