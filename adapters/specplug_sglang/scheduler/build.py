"""Choice of how rank 0 drafts: in the engine's stream, or by the draft stage, on a GPU between kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from specplug.assembly import build_draft_stage, may_stream
from specplug.faults import FaultGuard
from specplug.interfaces import PluginContext
from specplug.pipeline.device.columns import launches_for
from specplug.pipeline.draft import DraftStage
from specplug.plugins.registry import default_registry
from specplug.runtime.device_steps import DeviceSteps
from specplug.runtime.first_step import started
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
    found = _streamed(settings, context, table, tokenizer, notify)
    if found is not None:
        return found
    stage = build_draft_stage(settings, default_registry(), context, grammars=True)
    allocator = SlotAllocator(context.max_slots, context.device, notify)
    by_stage = StageDrafts(stage, table, _grammars(stage, context, tokenizer), context.caps, context.vocab_size)
    launches = launches_for(context.device)
    if launches is None or not DeviceSteps.applies(stage):
        return by_stage, allocator
    return DeviceDrafts(by_stage, table, context.vocab_size, allocator.slots, launches), allocator


def _streamed(
    settings: Settings, context: PluginContext, table: TokenTable, tokenizer: Any, notify: Callable[[Event], None]
) -> tuple[Drafts, SlotAllocator] | None:
    """Return how to draft in the engine's stream, with a stage on the CPU; None if that cannot be, or fails."""
    if not may_stream(settings, default_registry(), context.device):
        return None
    stage = build_draft_stage(settings, default_registry(), replace(context, device=HOST), grammars=True)
    if StreamSteps.applies(stage):
        allocator, grammars = SlotAllocator(context.max_slots, HOST, notify), _grammars(stage, context, tokenizer)
        drafts = started(lambda: StreamDrafts(stage, allocator.slots, table, grammars, context))
        if drafts is not None:
            return drafts, allocator
    stage.close()
    return None


def _grammars(stage: DraftStage, context: PluginContext, tokenizer: Any) -> Grammars:
    return Grammars(context.vocab_size, tokenizer, FaultGuard("grammar", sink=stage.metrics.fault))
