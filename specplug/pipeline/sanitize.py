"""Sanitizing of drafts, on the device and without reading back, so that any draft is safe to verify."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.draft import Draft


def sanitize(draft: Draft, limits: Tensor, vocab_size: int) -> None:
    """Cut every row, in place, to its limit [B] and before its first invalid entry.

    Invalid entries are ids outside [0, vocab_size) and parents that do not come before their child.  Confidences are
    clamped to [0, 1]; NaN becomes 0.
    """
    possible = (draft.token_ids >= 0) & (draft.token_ids < vocab_size)
    if draft.parents is not None:
        place = torch.arange(draft.draft_length, device=draft.device)
        possible &= (draft.parents >= -1) & (draft.parents < place)
    sound = possible.cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32)
    draft.shorten(torch.minimum(sound, limits))
    draft.confidence.nan_to_num_(nan=0.0).clamp_(0.0, 1.0)
