"""Choice of how V2's speculator drafts: by the draft stage on the engine's device, or on the host in its stream."""

from __future__ import annotations

from typing import Any

import torch

from specplug.assembly import may_stream
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.runtime.first_step import started
from specplug.runtime.stream_steps import StreamSteps
from specplug_vllm.config import resolved
from specplug_vllm.worker.drafting import Drafting


def build(
    vllm_config: Any, device: torch.device, like: tuple[EngineRows, DraftOutputs], *, has_verifier: bool
) -> tuple[Drafting, StreamSteps | None]:
    """Return the drafting of rank 0, and its steps in the stream; None if the draft stage takes them on the device.

    In a stream, all state of the draft stage is in host memory.  A verifier of specplug's (`has_verifier`) reads the
    slots' facts on the device, so the stage stays there.  Rows and outputs of steps are of the types of `like`.
    """
    if not has_verifier and _may_stream(vllm_config, device):
        drafting = Drafting(vllm_config, torch.device("cpu"), rank=0)
        if StreamSteps.applies(drafting.stage):
            given = drafting.slots, drafting.max_length, drafting.vocab_size, device
            steps = started(lambda: StreamSteps(drafting.stage, *given, like=like))
            if steps is not None:
                drafting.close_by(steps.close)
                return drafting, steps
        elif device.type == "cpu":
            return drafting, None
        drafting.close()
    return Drafting(vllm_config, device, rank=0), None


def _may_stream(vllm_config: Any, device: torch.device) -> bool:
    found = resolved(vllm_config)
    return found is not None and may_stream(found.settings, default_registry(), device)
