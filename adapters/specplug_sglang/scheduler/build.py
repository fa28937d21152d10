"""Choice of how rank 0 drafts: in the engine's stream, or by the draft stage itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specplug.assembly import build_draft_stage, may_stream
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import default_registry
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.request import Event
from specplug_sglang.scheduler.drafts import Drafts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.stage_drafts import StageDrafts
from specplug_sglang.scheduler.stream_drafts import StreamBuffers, StreamDrafts
from specplug_sglang.verification.table import TokenTable

HOST = torch.device("cpu")


def build(
    settings: Settings, context: PluginContext, table: TokenTable, tokenizer: Any, notify: Callable[[Event], None]
) -> tuple[Drafts, SlotAllocator]:
    """Return how to draft, and the slots of requests, which lie where the draft stage does.

    Args:
        settings: the server's.
        context: the context that plug-ins are built with.
        table: the token table.
        tokenizer: the target's, or None.
        notify: called with the slots' events.
    """
    stage, is_streamed = _stage(settings, context)
    grammars = Grammars(context.vocab_size, tokenizer, FaultGuard("grammar", sink=stage.metrics.fault))
    if not is_streamed:
        allocator = SlotAllocator(context.max_slots, context.device, notify)
        return StageDrafts(stage, table, grammars, context.caps, context.vocab_size), allocator
    allocator = SlotAllocator(context.max_slots, HOST, notify)
    buffers = StreamBuffers.allocate(stage, table)
    wide = buffers.ones.long()
    like = buffers.rows(table, wide, wide, buffers.ones), buffers.outputs(buffers.draft)
    sizes = context.max_length, context.vocab_size
    steps = StreamSteps(stage, allocator.slots, *sizes, context.device, like=like)
    return StreamDrafts(stage, steps, table, buffers, grammars, context.caps), allocator


def _stage(settings: Settings, context: PluginContext) -> tuple[DraftStage, bool]:
    """Return the draft stage, and whether its steps can be taken in the engine's stream; it is on the CPU then."""
    registry = default_registry()
    if may_stream(settings, registry, context.device):
        stage = build_draft_stage(settings, registry, replace(context, device=HOST), grammars=True)
        if StreamSteps.applies(stage):
            return stage, True
        if context.device == HOST:
            return stage, False
        stage.close()
    return build_draft_stage(settings, registry, context, grammars=True), False
