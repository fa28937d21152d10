"""The first step in an engine's stream, a dummy: it compiles what steps launch, and shows that the stream runs them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor

from specplug.errors import EngineError, describe
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import Transfers
from specplug.pipeline.stream.launch import HostFunctionStream
from specplug.runtime.steps_in_flight import StepInFlight
from specplug.types.host_step import OK, HostStep

logger = logging.getLogger("specplug")

LIMIT = 10.0
"""Seconds that a stream may take for the step, once it is launched."""

T = TypeVar("T")


def started(start: Callable[[], T]) -> T | None:
    """Return what `start` returns, whose steps are taken in the engine's stream; None, with a warning, if it raises."""
    try:
        return start()
    except Exception as error:
        what = "steps cannot be taken in the engine's stream, so they are taken without it: %s"
        logger.warning(what, describe(error))
        return None


def take_first(
    step: StepInFlight,
    like: tuple[EngineRows, DraftOutputs],
    transfers: Transfers,
    stream: HostFunctionStream,
    function: int,
) -> None:
    """Take a step of one row that is of no request, and compare what comes back.

    Args:
        step: a step that has described no rows; the host function leaves the proposer out.
        like: rows and outputs with the dtypes, and the device, of all steps.
        transfers, stream, function: as of all steps.

    Raises:
        EngineError: the step has not ended after `LIMIT` seconds, or something else came back.
    """
    buffers, device = step.buffers, like[0].all_token_ids.device
    draft_length, text = buffers.ids.shape[1], list(range(2, 2 + buffers.packed))
    drafted = list(range(1, 1 + draft_length))
    buffers.draft_rows[0], buffers.draft_lengths[0] = 0, draft_length
    buffers.ids[0], buffers.confidence[0] = torch.tensor(drafted, dtype=torch.int32), 0.5
    if buffers.parents is not None:
        buffers.parents[0] = torch.arange(-1, draft_length - 1)
    step.set_flags(HostStep(0, 0), draft_length, counts_verdicts=False, runs_proposer=False, stores_drafts=False)
    with _aside(device):
        blank: list[Any] = [None if it is None else it.new_zeros(1, draft_length) for it in like[1]]
        outputs = DraftOutputs(*blank)
        if outputs.lengths is not None:
            outputs = outputs._replace(lengths=outputs.lengths[:, 0])
        if outputs.from_engine is not None:
            outputs = outputs._replace(from_engine=outputs.from_engine[:, 0])
        transfers.pack(buffers, 1, _row(like[0], text))
        stream.launch(function, step.argument)
        transfers.unpack(buffers, 1, draft_length, outputs)
        if not stream.mark().ends_within(LIMIT):
            raise EngineError.build("a stream does not run a step", who=type(stream).__name__, expected=f"{LIMIT:g} s")
        found = [step.control.status, *map(_first, (buffers.lengths, buffers.emitted, buffers.verified))]
        found += [buffers.newest[0, -buffers.packed :].tolist(), *map(_first, outputs)]
        found += [buffers.engine_ids[0].tolist()]
    links = list(range(-1, draft_length - 1))
    arrived = [drafted, [0.5] * draft_length, draft_length, links, 0]
    expected: list[Any] = [OK, buffers.packed, 2, 2, text]
    expected += [None if it is None else value for it, value in zip(outputs, arrived, strict=True)]
    expected += [list(range(buffers.engine_ids.shape[1]))]
    if found != expected:
        what = "a step in a stream hands on something else than it should"
        raise EngineError.build(what, who=type(stream).__name__, found=found, expected=expected)


def _row(like: EngineRows, text: list[int]) -> EngineRows:
    """Return one row with this text, that has sampled 2 tokens and rejected 1; its tensors' types are those given."""
    ids = like.engine_ids
    return like._replace(
        idx_mapping=like.idx_mapping.new_zeros(1),
        total_len=like.total_len.new_full((1,), len(text) - like.lacking),
        all_token_ids=like.all_token_ids.new_tensor([text]),
        num_sampled=like.num_sampled.new_full((1,), 2),
        num_rejected=like.num_rejected.new_full((1,), 1),
        engine_ids=ids if ids is None else torch.arange(ids.shape[1], dtype=ids.dtype, device=ids.device)[None],
    )


def _first(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor[0].tolist()


def _aside(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a stream of its own on a GPU: if the step never ends, the engine's stream still runs."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
