"""Choice of how rank 0 drafts: in the engine's stream, or by the draft stage, on a GPU between kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specplug.assembly import build_draft_stage, may_stream
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext
from specplug.pipeline.device.launches import launches_for
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import default_registry
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.request import Event
from specplug_sglang.scheduler.device_drafts import DeviceDrafts
from specplug_sglang.scheduler.drafts import Drafts
from specplug_sglang.scheduler.grammar import Grammars
from specplug_sglang.scheduler.stage_drafts import StageDrafts
from specplug_sglang.scheduler.stream_drafts import StreamDrafts
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
    allocator = SlotAllocator(context.max_slots, HOST if is_streamed else context.device, notify)
    if is_streamed:
        return StreamDrafts(stage, allocator.slots, table, grammars, context), allocator
    by_stage = StageDrafts(stage, table, grammars, context.caps, context.vocab_size)
    launches = launches_for(context.device)
    if launches is None or not DeviceSteps.applies(stage):
        return by_stage, allocator
    return DeviceDrafts(by_stage, table, context.vocab_size, allocator.slots, launches), allocator


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
