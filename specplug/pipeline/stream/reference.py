"""`pack` and `unpack` in plain torch, for tensors on the CPU: the reference of `kernels` and of `host_kernels`."""

from __future__ import annotations

import torch

from specplug.pipeline.stream.buffers import StepBuffers
from specplug.pipeline.stream.tensors import DraftOutputs, EngineRows


def pack(buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
    """Write `lengths`, `emitted`, `verified` and `newest` of the first B rows.

    Args:
        buffers: the step's buffers, which state how many tokens are packed.
        batch_size: B.  Entries of per-row tensors after the first B are neither read nor written.
        rows: the engine's rows.
    """
    slots, sampled = rows.idx_mapping[:batch_size].long(), rows.num_sampled[:batch_size]
    lengths = (rows.total_len[:batch_size] if rows.lengths_by_row else rows.total_len[slots]) + rows.lacking
    buffers.lengths[:batch_size] = lengths
    buffers.emitted[:batch_size] = sampled
    buffers.verified[:batch_size] = torch.where(sampled > 0, sampled - 1 + rows.num_rejected[:batch_size], 0)

    positions = lengths.long()[:, None] + torch.arange(-buffers.packed, 0)
    tokens = rows.all_token_ids[slots[:, None], positions.clamp(min=0)]
    newest = buffers.newest[:batch_size, buffers.window - buffers.packed :]
    newest.copy_(torch.where(positions >= 0, tokens, newest))


def unpack(buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
    """Write the drafts of the first B rows of the engine, padded with each row's newest token and confidence 0.

    Args:
        buffers: the step's buffers, for drafts of at most K tokens.
        batch_size: B.  Entries of per-row tensors after the first B are neither read nor written.
        draft_length: most draft tokens of this step, at most K; `draft_lengths` are clamped to it.
        outputs: the engine's tensors, of K columns or fewer.
    """
    drafts, columns = buffers.draft_rows[:batch_size].long(), outputs.ids.shape[1]
    sources = drafts.clamp(min=0)
    lengths = torch.where(drafts >= 0, buffers.draft_lengths[sources], 0).clamp(0, min(draft_length, columns))
    is_drafted = torch.arange(columns) < lengths[:, None]
    newest = buffers.newest[:batch_size, -1:].to(outputs.ids.dtype)
    outputs.ids[:batch_size] = torch.where(is_drafted, buffers.ids[sources, :columns], newest)
    if outputs.confidence is not None:
        outputs.confidence[:batch_size] = torch.where(is_drafted, buffers.confidence[sources, :columns], 0.0)
    if outputs.lengths is not None:
        outputs.lengths[:batch_size] = lengths
    if outputs.parents is not None:
        assert buffers.parents is not None, "only buffers of trees have parents"
        parents = buffers.parents[sources, :columns]
        outputs.parents[:batch_size] = torch.where(is_drafted, parents, torch.arange(-1, columns - 1))
