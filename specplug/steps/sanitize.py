"""Cutting drafts to what is sound: `sanitize_tensors` is the rule, `sanitize_arrays` the same in arrays of a CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from specplug.types.paths import ROOT
from specplug.types.step import Draft


def sanitize(draft: Draft, limits: Tensor, vocab_size: int) -> None:
    """Cut every row, in place, to its limit [B] and before its first invalid entry.

    Invalid entries are ids outside [0, vocab_size) and parents that do not come before their child.  Confidences are
    clamped to [0, 1]; NaN becomes 0.
    """
    form = sanitize_arrays if draft.device.type == "cpu" else sanitize_tensors
    form(draft, limits, vocab_size)


def sanitize_tensors(draft: Draft, limits: Tensor, vocab_size: int) -> None:
    """Do what `sanitize` does, on any device."""
    possible = (draft.token_ids >= 0) & (draft.token_ids < vocab_size)
    if draft.parents is not None:
        place = torch.arange(draft.draft_length, device=draft.device)
        possible &= (draft.parents >= -1) & (draft.parents < place)
    sound = possible.cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32)
    draft.shorten(torch.minimum(sound, limits))
    draft.confidence.nan_to_num_(nan=0.0).clamp_(0.0, 1.0)


def sanitize_arrays(draft: Draft, limits: Tensor, vocab_size: int) -> None:
    """Do what `sanitize` does on a CPU, in operations on arrays."""
    ids = draft.token_ids.numpy()
    lengths = draft.lengths.numpy()
    levels = draft.confidence.numpy()
    place = np.arange(ids.shape[1])
    possible = ids.view(np.uint32) < vocab_size  # as unsigned integers, negative ids are huge
    if draft.parents is not None:
        parents = draft.parents.numpy()
        possible &= (parents >= ROOT) & (parents < place)
    sound = np.logical_and.accumulate(possible, 1).sum(1, dtype=np.int32)
    np.minimum(lengths, sound, out=lengths)
    np.minimum(lengths, limits.numpy(), out=lengths)
    draft.lengths.clamp_(min=0)  # raises where entries overlap in memory
    draft.pad_arrays(place >= lengths[:, None])
    np.fmax(levels, 0.0, out=levels)  # of NaN and a number, it takes the number
    np.minimum(levels, 1.0, out=levels)
