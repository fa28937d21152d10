"""`pack` and `unpack` as one compiled function each, for tensors on the CPU; `Transfers` documents both.

Tensor operations on a few hundred bytes cost microseconds each.  The functions take addresses, because numpy views of
the tensors would take longer to create than the functions run.
"""

from __future__ import annotations

import torch
from numba import carray  # type: ignore[attr-defined]
from torch import Tensor

from specplug.errors import ContractError
from specplug.match.cpu.compiled import compiled, inlined
from specplug.match.cpu.intrinsics import float32_at, int32_at, int64_at
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows
from specplug.pipeline.stream.buffers import StepBuffers

_SIZES = {torch.int32: 4, torch.int64: 8}
"""Bytes of an element."""


@inlined
def _integer(address: int, size: int, index: int) -> int:
    """Return an element of an array of integers of `size` bytes."""
    return int64_at(address)[index] if size == 8 else int32_at(address)[index]  # type: ignore[no-any-return]


@compiled
def _pack(
    batch_size: int,
    idx_mapping: int,
    idx_size: int,
    idx_stride: int,
    total_len: int,
    length_size: int,
    length_stride: int,
    by_row: bool,
    lacking: int,
    all_token_ids: int,
    tokens_stride: int,
    num_sampled: int,
    sampled_size: int,
    sampled_stride: int,
    num_rejected: int,
    rejected_size: int,
    rejected_stride: int,
    lengths: int,
    emitted: int,
    verified: int,
    newest: int,
    window: int,
    packed: int,
    engine_ids: int,
    engine_size: int,
    engine_stride: int,
    engine_ids_out: int,
    engine_tokens: int,
) -> None:
    """Run `pack` on addresses of the fields of `EngineRows`, with bytes and strides of elements, and of the buffers."""
    lengths_out, emitted_out = carray(int32_at(lengths), batch_size), carray(int32_at(emitted), batch_size)
    verified_out = carray(int32_at(verified), batch_size)
    newest_out = carray(int32_at(newest), (batch_size, window))
    for row in range(batch_size):
        slot = _integer(idx_mapping, idx_size, row * idx_stride)
        length = _integer(total_len, length_size, (row if by_row else slot) * length_stride) + lacking
        sampled = _integer(num_sampled, sampled_size, row * sampled_stride)
        rejected = _integer(num_rejected, rejected_size, row * rejected_stride)
        lengths_out[row], emitted_out[row] = length, sampled
        verified_out[row] = sampled - 1 + rejected if sampled > 0 else 0
        text = carray(int32_at(all_token_ids + 4 * slot * tokens_stride), length)
        for place in range(window - min(packed, length), window):
            newest_out[row, place] = text[length - window + place]
        for place in range(engine_tokens):
            token = _integer(engine_ids, engine_size, row * engine_stride + place)
            int32_at(engine_ids_out)[row * engine_tokens + place] = token


@compiled
def _unpack(
    batch_size: int,
    draft_length: int,
    draft_rows: int,
    draft_lengths: int,
    newest: int,
    window: int,
    ids: int,
    levels: int,
    links: int,
    buffers_stride: int,
    out: int,
    out_size: int,
    out_stride: int,
    confidence: int,
    confidence_stride: int,
    lengths: int,
    lengths_stride: int,
    parents: int,
    parents_stride: int,
    from_engine: int,
    from_engine_stride: int,
    columns: int,
    of_engine: int,
) -> None:
    """Run `unpack` on the addresses of the buffers, whose confidence and parents are `levels` and `links`, and of the
    fields of `DraftOutputs`, 0 for None.
    """
    for row in range(batch_size):
        draft, last = int32_at(draft_rows)[row], int32_at(newest)[(row + 1) * window - 1]
        drafted = int32_at(draft_lengths)[draft] if draft >= 0 else 0
        length, source = min(max(drafted, 0), draft_length, columns), draft * buffers_stride
        if lengths:
            int32_at(lengths)[row * lengths_stride] = length
        if from_engine:
            count = int32_at(of_engine)[draft] if draft >= 0 else 0
            int32_at(from_engine)[row * from_engine_stride] = min(count, length)
        for column in range(columns):
            is_drafted = column < length
            token, place = int32_at(ids)[source + column] if is_drafted else last, row * out_stride + column
            if out_size == 8:
                int64_at(out)[place] = token
            else:
                int32_at(out)[place] = token
            if confidence:
                level = float32_at(levels)[source + column] if is_drafted else 0.0
                float32_at(confidence)[row * confidence_stride + column] = level
            if parents:
                parent = int32_at(links)[source + column] if is_drafted else column - 1
                int32_at(parents)[row * parents_stride + column] = parent


def pack(buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
    """Write what the step found into `buffers`; see `Transfers.pack`."""
    _pack(
        batch_size,
        *_integers(rows.idx_mapping),
        *_integers(rows.total_len),
        rows.lengths_by_row,
        rows.lacking,
        rows.all_token_ids.data_ptr(),
        rows.all_token_ids.stride(0),
        *_integers(rows.num_sampled),
        *_integers(rows.num_rejected),
        buffers.lengths.data_ptr(),
        buffers.emitted.data_ptr(),
        buffers.verified.data_ptr(),
        buffers.newest.data_ptr(),
        buffers.newest.shape[1],
        buffers.packed,
        *((0, 4, 0) if rows.engine_ids is None else _integers(rows.engine_ids)),
        buffers.engine_ids.data_ptr(),
        0 if rows.engine_ids is None else buffers.engine_ids.shape[1],
    )


def unpack(buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
    """Write the drafts in `buffers` into the engine's tensors; see `Transfers.unpack`."""
    _unpack(
        batch_size,
        draft_length,
        buffers.draft_rows.data_ptr(),
        buffers.draft_lengths.data_ptr(),
        buffers.newest.data_ptr(),
        buffers.newest.shape[1],
        buffers.ids.data_ptr(),
        buffers.confidence.data_ptr(),
        _place(buffers.parents)[0],
        buffers.ids.stride(0),
        *_integers(outputs.ids),
        *_place(outputs.confidence),
        *_place(outputs.lengths),
        *_place(outputs.parents),
        *_place(outputs.from_engine),
        outputs.ids.shape[1],
        buffers.from_engine.data_ptr(),
    )


def _place(tensor: Tensor | None) -> tuple[int, int]:
    """Return the address of a tensor and the stride of its first axis; zeros for None."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), tensor.stride(0))


def _integers(tensor: Tensor) -> tuple[int, int, int]:
    """Return the address of a tensor of integers, the bytes of an element, and the stride of its first axis.

    Raises:
        ContractError: its dtype is another than int32 or int64.
    """
    size = _SIZES.get(tensor.dtype)
    if size is None:
        raise ContractError.build(
            "an engine's tensor has an unsupported dtype",
            who="specplug.pipeline.stream",
            found=tensor.dtype,
            expected="int32 or int64",
        )
    return tensor.data_ptr(), size, tensor.stride(0)
