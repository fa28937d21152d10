"""Lossy verification of the rows that opt in, beside lossless verification of the others."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.verification import Verification


def merged(opted_in: Tensor, lossy: Verification, lossless: Verification) -> Verification:
    """Return the lossy decision in the rows of `opted_in` [B] bool, and the lossless one in the others."""
    departed = lossy.departed
    return Verification(
        torch.where(opted_in[:, None], lossy.token_ids, lossless.token_ids),
        torch.where(opted_in, lossy.num_accepted, lossless.num_accepted),
        None if departed is None else torch.where(opted_in, departed, 0.0),
    )
