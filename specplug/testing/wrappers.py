"""What may stand between the driver and a proposer: the pipeline, changed batches, and a watch over the arguments."""

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


def without_old_text(batch: EngineBatch, *, newest_only: bool = False) -> EngineBatch:
    """Return a batch in which old text is poisoned, with whole tables or with the newest tokens only."""
    found = batch.to_host(newest_only=newest_only)
    first = torch.zeros_like(found.num_new) if newest_only else found.lengths - found.num_new
    place = torch.arange(found.tokens.shape[1]) - first[:, None]
    found.tokens.masked_fill_((place < 0) | (place >= found.num_new[:, None]), POISON)
    return found


class StagedProposer(Proposer):
    """Runs a proposer's steps through the real `DraftStage`, each after a dummy step on the same slots with other text.

    Faults of the proposer are contained and counted in `guard`.  A host proposer that declares `inline` runs in the
    engine's thread if `inline`, otherwise on a thread, as for batches on a GPU.
    """

    def __init__(self, proposer: Proposer, spec: ProposerSpec, context: PluginContext, *, inline: bool = False) -> None:
        self.proposer = proposer
        self.sources = proposer.sources
        self.draft_vocab = proposer.draft_vocab
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

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Do nothing, as `step` drafts."""

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Pass a verdict on."""
        self.proposer.observe(batch, draft, verdict)

    def on_event(self, event: Event) -> None:
        """Pass an event on."""
        self.proposer.on_event(event)

    def close(self) -> None:
        """Close the stage, and the proposer with it."""
        self.stage.close()


def watch(call: str, action: Callable[[], object], **read_only: Any) -> None:
    """Run an action, and raise `ContractError` if it changed one of its read-only tensors, or records of them."""
    tensors: dict[str, Tensor] = {}
    for name, value in read_only.items():
        parts = {"": value} if isinstance(value, Tensor) else {f".{part}": it for part, it in tensors_of(value).items()}
        tensors |= {name + part: tensor for part, tensor in parts.items()}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    action()
    for name, tensor in tensors.items():
        if not torch.equal(tensor, before[name]):
            raise ContractError.build(
                f"{call} has changed {name}",
                found=tensor.tolist(),
                expected=f"{before[name].tolist()}, because it is read-only",
                remedy="Write to a clone of it",
            )
