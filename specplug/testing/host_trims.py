"""Calls of trim halves as C functions, on drafts in host memory."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from specplug.types.draft import Draft
from specplug.types.host_step import OK, HostStep, TrimArgument
from specplug.types.trim import TrimLimits

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)


def kept_by(step: HostStep, draft: Draft, limits: TrimLimits) -> Tensor:
    """Return the mask [B, N] bool of the tokens that a C function keeps; the memory that it is handed is poisoned."""
    rows, draft_length = draft.token_ids.shape
    workspace, kept = np.full((rows, draft_length), np.nan, np.float32), np.full((rows, draft_length), 7, np.uint8)
    numbers = np.full(len(TrimArgument), -7, np.int64)
    for which, number in {
        TrimArgument.DATA: step.data,
        TrimArgument.BATCH_SIZE: rows,
        TrimArgument.DRAFT_LENGTH: draft_length,
        TrimArgument.TOKEN_BUDGET: int(limits.token_budget),
        TrimArgument.DECODING: limits.decoding.data_ptr(),
        TrimArgument.CONFIDENCE: draft.confidence.data_ptr(),
        TrimArgument.PARENTS: 0 if draft.parents is None else draft.parents.data_ptr(),
        TrimArgument.DRAFT_STRIDE: draft.confidence.stride(0),
        TrimArgument.DRAFT_LENGTHS: draft.lengths.data_ptr(),
        TrimArgument.WORKSPACE: workspace.ctypes.data,
        TrimArgument.KEPT: kept.ctypes.data,
    }.items():
        numbers[which] = number
    numbers.view(np.float32)[2 * TrimArgument.PRICE] = float(limits.price)
    status = C_FUNCTION(step.function)(numbers.ctypes.data)
    assert status == OK, f"the C function of a trim half returned {status}; expected {OK}"
    assert set(np.unique(kept)) <= {0, 1}, f"it wrote {np.unique(kept)}; expected 0 or 1 for every token"
    return torch.from_numpy(kept).bool()
