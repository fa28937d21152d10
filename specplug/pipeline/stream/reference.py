"""`pack` and `unpack` in plain torch: the reference of `specplug.pipeline.stream.kernels`, for tensors on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.pipeline.stream.buffers import StepBuffers


def pack(
    buffers: StepBuffers,
    batch_size: int,
    idx_mapping: Tensor,
    total_len: Tensor,
    all_token_ids: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
) -> None:
    """Write `lengths`, `emitted`, `verified` and `newest` of the first B rows.

    Args:
        buffers: the step's buffers, with a window of W tokens.
        batch_size: B.  Entries of per-row tensors after the first B are neither read nor written.
        idx_mapping: [>= B] int32 or int64, the slot of each row.
        total_len: [S] int32, tokens of each slot.
        all_token_ids: [S, L] int32, tokens of each slot.
        num_sampled: [>= B] int32, tokens that the step emitted for each row; 0 for a row within its prompt.
        num_rejected: [>= B] int32, draft tokens of each row that the step rejected.
    """
    slots = idx_mapping[:batch_size].long()
    lengths, sampled, rejected = total_len[slots], num_sampled[:batch_size], num_rejected[:batch_size]
    buffers.lengths[:batch_size] = lengths
    buffers.emitted[:batch_size] = sampled
    buffers.verified[:batch_size] = torch.where(sampled > 0, sampled - 1 + rejected, 0)

    positions = lengths.long()[:, None] + torch.arange(-buffers.window, 0)
    tokens = all_token_ids[slots[:, None], positions.clamp(min=0)]
    newest = buffers.newest[:batch_size]
    newest.copy_(torch.where(positions >= 0, tokens, newest))


def unpack(
    buffers: StepBuffers,
    batch_size: int,
    draft_length: int,
    idx_mapping: Tensor,
    last_sampled: Tensor,
    out: Tensor,
    confidence: Tensor,
) -> None:
    """Write the drafts of the first B rows of the engine, padded with each row's last token and confidence 0.

    Args:
        buffers: the step's buffers, for drafts of at most K tokens.
        batch_size: B.  Entries of per-row tensors after the first B are neither read nor written.
        draft_length: most draft tokens of this step, at most K; `draft_lengths` are clamped to it.
        idx_mapping: [>= B] int32 or int64, the slot of each row.
        last_sampled: [S] or [S, 1] int64, the last token of each slot.
        out: [>= B, K] int64, set to the draft tokens; rows may be further apart than K.
        confidence: [>= B, K] float32, set to the drafts' confidence; rows may be further apart than K.
    """
    drafts = buffers.draft_rows[:batch_size].long()
    sources = drafts.clamp(min=0)
    lengths = torch.where(drafts >= 0, buffers.draft_lengths[sources], 0).clamp(0, draft_length)
    is_drafted = torch.arange(out.shape[1]) < lengths[:, None]
    last = last_sampled[idx_mapping[:batch_size].long()].view(batch_size, 1)
    out[:batch_size] = torch.where(is_drafted, buffers.ids[sources], last)
    confidence[:batch_size] = torch.where(is_drafted, buffers.confidence[sources], 0.0)
