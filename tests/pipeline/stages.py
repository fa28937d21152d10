"""A draft stage of any proposers, with its guards and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specplug.faults import FaultGuard
from specplug.interfaces import Trimmer
from specplug.metrics import SpecMetrics
from specplug.pipeline.draft import DraftStage
from specplug.pipeline.handles import make_handle
from specplug.plugins.specs import ProposerSpec
from specplug.trace import TraceWriter
from specplug.types.caps import EngineCaps

CPU = torch.device("cpu")
VOCAB = 64
SLOTS = 6


def stage_of(
    proposers: Mapping[str, Any],
    caps: EngineCaps,
    trimmer: Trimmer,
    *,
    device: torch.device = CPU,
    vocab_size: int = VOCAB,
    max_slots: int = SLOTS,
    deadline: float | None = None,
    trace: TraceWriter | None = None,
    other_sources: Sequence[str] = (),
    **breaker: int,
) -> DraftStage:
    """Return a draft stage.

    Args:
        proposers: by name, the default first, each with its `caps`.
        other_sources: that the metrics know besides those of the proposers.
        breaker: arguments of all guards.
    """
    handles = [
        make_handle(ProposerSpec(name=name, factory=lambda _: None, summary="", caps=it.caps), it, deadline, device)
        for name, it in proposers.items()
    ]
    sources = [source for handle in handles for source in handle.sources]
    metrics = SpecMetrics([*sources, *other_sources], caps.max_draft_length, device)
    *guards, trim_guard = [FaultGuard(name, sink=metrics.fault, **breaker) for name in (*proposers, "trimmer")]
    return DraftStage(
        handles,
        guards,
        trimmer,
        trim_guard,
        caps=caps,
        max_slots=max_slots,
        vocab_size=vocab_size,
        device=device,
        metrics=metrics,
        trace=trace,
    )
