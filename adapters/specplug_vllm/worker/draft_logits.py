"""Writer of the draft logits that V2's rejection sampler reads, without large temporaries.

With 256 requests, 8 draft tokens and a vocabulary of 152,000 the engine's buffer takes 1.2 GB.  It is allocated before
vLLM profiles its memory, which would not count temporaries of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft

UNLIKELY = -1e4
"""Logit of every other token where a draft token is certain.  Finite, because vLLM subtracts logits."""


def write(buffer: Tensor, slots: Tensor, draft: Draft, temperature: Tensor, token_ids: Tensor) -> None:
    """Write the logits of B rows: the proposer's own, or one-hot at any temperature for padding and one-hot drafts.

    Overwrites `draft.draft_logits`, which nothing reads afterwards.

    Args:
        buffer: [S, K, V] float32, by slot.
        slots: [B] int64, distinct.
        draft: at most K tokens per row; its logits may cover a draft vocabulary.
        temperature: [B] float32.
        token_ids: [B, K] int64, the padded drafts.
    """
    floor = (UNLIKELY * temperature.clamp(min=1.0))[:, None, None]
    stated, draft_length = draft.draft_logits, 0
    is_stated = torch.zeros(token_ids.shape, dtype=torch.bool, device=buffer.device)
    if stated is not None:
        draft_length = draft.draft_length
        is_stated[:, :draft_length] = draft.mask() if draft.drawn is None else draft.mask() & draft.drawn
        torch.maximum(stated, floor, out=stated)
        torch.where(is_stated[:, :draft_length, None], stated, floor, out=stated)
    whole = draft_length if draft.draft_vocab is None else 0  # positions with logits for the full vocabulary
    rest = (len(slots), buffer.shape[1] - whole, buffer.shape[2])
    buffer[:, whole:].index_copy_(0, slots, floor.expand(rest))
    positions = torch.arange(buffer.shape[1], device=buffer.device)
    if stated is not None and draft.draft_vocab is None:
        buffer[:, :draft_length].index_copy_(0, slots, stated)
    elif stated is not None:
        buffer[slots[:, None, None], positions[:draft_length, None], draft.draft_vocab] = stated
    at_tokens = (slots[:, None], positions, token_ids)
    buffer[at_tokens] = torch.where(is_stated, buffer[at_tokens], 0.0)
