"""Proposers that stand between the driver and the proposer under test, and change or watch what passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext, Proposer
from specplug.metrics import SpecMetrics
from specplug.plugins.specs import ProposerSpec
from specplug.steps.draft_stage import DraftStage
from specplug.steps.handles import make_handle
from specplug.steps.trim import SurvivalTrimmer
from specplug.testing.batches import POISON
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, Verdict
from specplug.types.tensors import tensors_of


class WrappedProposer(Proposer):
    """Forwards every call to another proposer."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.sources, self.draft_vocab = proposer.sources, proposer.draft_vocab

    def warmup(self) -> None:
        self.proposer.warmup()

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        self.proposer.step(batch, limits, draft)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        self.proposer.propose(batch, limits, draft)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.proposer.observe(batch, draft, verdict)

    def on_event(self, event: Event) -> None:
        self.proposer.on_event(event)

    def close(self) -> None:
        self.proposer.close()


class WatchedProposer(WrappedProposer):
    """Raises `ContractError` if a call has changed one of its read-only arguments."""

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        watch("ingest", lambda: self.proposer.ingest(batch), batch=batch)
        if limits is not None and draft is not None:
            action, base = (lambda: self.proposer.propose(batch, limits, draft)), {"draft.base_len": draft.base_len}
            watch("propose", action, batch=batch, limits=limits, **base)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        action = lambda: self.proposer.observe(batch, draft, verdict)  # noqa: E731
        watch("observe", action, batch=batch, draft=draft, verdict=verdict)


class ChangedBatches(WrappedProposer):
    """Passes on what `change` returns for each batch."""

    def __init__(self, proposer: Proposer, change: Callable[[EngineBatch], EngineBatch]) -> None:
        super().__init__(proposer)
        self._change = change

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        self.proposer.step(self._change(batch), limits, draft)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.proposer.observe(self._change(batch), draft, verdict)


def newest_only(batch: EngineBatch) -> EngineBatch:
    """Return a batch with only each row's newest tokens, in tables that begin with them and are poisoned after them."""
    windows = batch.to_host(newest_only=True)
    _poison_outside(windows.tokens, torch.zeros_like(windows.num_new), windows.num_new)
    return windows


def without_old_text(batch: EngineBatch) -> EngineBatch:
    """Return a batch with whole tables in which old text is poisoned."""
    tables = batch.to_host()
    _poison_outside(tables.tokens, tables.lengths - tables.num_new, tables.lengths)
    return tables


def _poison_outside(tokens: Tensor, begin: Tensor, end: Tensor) -> None:
    """Poison the entries outside [begin, end) in each row of `tokens` [B, L]; both bounds are [B]."""
    places = torch.arange(tokens.shape[1])
    tokens.masked_fill_((places < begin[:, None]) | (places >= end[:, None]), POISON)


class StagedProposer(WrappedProposer):
    """Runs every step through the real `DraftStage`, after a dummy step on the same slots with other text.

    Faults of the proposer are contained and counted in `guard`.  A host proposer that declares `inline` runs in the
    engine's thread if `inline`, otherwise on a thread, as for batches on a GPU.
    """

    def __init__(self, proposer: Proposer, spec: ProposerSpec, context: PluginContext, *, inline: bool = False) -> None:
        super().__init__(proposer)
        caps = spec.caps_for(context.device.type)
        spec = replace(spec, caps=replace(caps, inline=inline and caps.inline))
        handle = make_handle(spec, proposer, deadline=None, device=context.device)
        self.guard = FaultGuard(spec.name)
        self.stage = DraftStage(
            [handle],
            [self.guard],
            SurvivalTrimmer(),
            FaultGuard("trim"),
            caps=context.caps,
            max_slots=context.max_slots,
            vocab_size=context.vocab_size,
            device=context.device,
            metrics=SpecMetrics(handle.sources, context.caps.max_draft_length, context.device),
        )

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Pass a dummy batch to the stage, then the real one, which is only ingested without a draft."""
        draft_length = 0 if draft is None else draft.draft_length
        self.stage.propose(replace(batch, tokens=batch.tokens.flip(1), is_dummy=True), draft_length, limits)
        if draft is None:
            self.stage.ingest(batch)
        found = self.stage.propose(batch, draft_length, limits)
        if draft is not None:
            draft.copy_(found)

    def close(self) -> None:
        """Close the stage, and the proposer with it."""
        self.stage.close()


def watch(call: str, action: Callable[[], object], **read_only: Any) -> None:
    """Run an action, and raise `ContractError` if it changed one of its read-only tensors, or records of them."""
    before = {name: _copies(value) for name, value in read_only.items()}
    action()
    for name, value in read_only.items():
        for path, tensor in _copies(value).items():
            if not torch.equal(tensor, before[name][path]):
                raise ContractError.build(
                    f"{call} has changed {name}{path}",
                    found=tensor.tolist(),
                    expected=f"{before[name][path].tolist()}, because it is read-only",
                    remedy="Write to a clone of it",
                )


def _copies(value: Any) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {"": value.clone()}
    return {f".{name}": tensor.clone() for name, tensor in tensors_of(value).items()}
