"""The logits that V2's rejection sampler reads of drafts, written into the engine's buffer without large temporaries.

With 256 requests, 8 draft tokens and a vocabulary of 152,000 the buffer takes 1.2 GB.  It is allocated before vLLM
profiles its memory; what a step allocated besides would not be counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft

UNLIKELY = -1e4
"""The logit of what a certain draft token is not.  Finite, because vLLM subtracts logits from each other."""


def write(buffer: Tensor, slots: Tensor, draft: Draft, temperature: Tensor, token_ids: Tensor) -> None:
    """Write the logits of B rows: the stated ones, and certainty, at any temperature, for padding and one-hot drafts.

    Overwrites `draft.draft_logits`, which nobody reads any more.

    Args:
        buffer: [S, K, V] float32, by slot.
        slots: [B] int64, all of them different.
        draft: of at most K tokens.
        temperature: [B] float32.
        token_ids: [B, K] int64: the drafts, padded.
    """
    floor = (UNLIKELY * temperature.clamp(min=1.0))[:, None, None]
    stated, width = draft.draft_logits, 0
    if stated is not None:
        width, inside = draft.width, draft.mask()[:, :, None]
        ids = token_ids[:, :width, None]
        torch.maximum(stated, floor, out=stated)
        torch.where(inside, stated, floor, out=stated)
        stated.scatter_(2, ids, torch.where(inside, stated.gather(2, ids), 0.0))
        buffer[:, :width].index_copy_(0, slots, stated)
    batch_size, rest = len(slots), buffer.shape[1] - width
    if rest:
        buffer[:, width:].index_copy_(0, slots, floor.expand(batch_size, rest, buffer.shape[2]))
        places = torch.arange(width, buffer.shape[1], device=buffer.device)
        buffer[slots[:, None], places, token_ids[:, width:]] = 0.0
