"""Calls of proposers' steps and trim halves as C functions, on batches and drafts in host memory."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from specplug.interfaces import HasHostStep, Proposer
from specplug.testing.wrappers import WrappedProposer
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.host_step import OK, HostStep, StepArgument, TrimArgument
from specplug.types.trim import TrimLimits

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)


def kept_by(step: HostStep, draft: Draft, limits: TrimLimits) -> Tensor:
    """Return the mask [B, N] bool of the tokens that a C function keeps; the memory that it is handed is poisoned."""
    rows, draft_length = draft.token_ids.shape
    workspace, kept = np.full((rows, draft_length), np.nan, np.float32), np.full((rows, draft_length), 7, np.uint8)
    numbers, entry = np.full(len(TrimArgument), -7, np.int64), np.array(limits.entry)
    for which, number in {
        TrimArgument.DATA: step.data,
        TrimArgument.BATCH_SIZE: rows,
        TrimArgument.DRAFT_LENGTH: draft_length,
        TrimArgument.TOKEN_BUDGET: int(limits.token_budget),
        TrimArgument.NUM_PRICES: limits.prices.numel(),
        TrimArgument.PRICES: limits.prices.data_ptr(),
        TrimArgument.PRICES_AFTER: limits.prices_after.data_ptr(),
        TrimArgument.DECODING: limits.decoding.data_ptr(),
        TrimArgument.CONFIDENCE: draft.confidence.data_ptr(),
        TrimArgument.PARENTS: 0 if draft.parents is None else draft.parents.data_ptr(),
        TrimArgument.DRAFT_STRIDE: draft.confidence.stride(0),
        TrimArgument.DRAFT_LENGTHS: draft.lengths.data_ptr(),
        TrimArgument.WORKSPACE: workspace.ctypes.data,
        TrimArgument.KEPT: kept.ctypes.data,
        TrimArgument.ENTRY: entry.ctypes.data,
    }.items():
        numbers[which] = number
    status = C_FUNCTION(step.function)(numbers.ctypes.data)
    assert status == OK, f"the C function of a trim half returned {status}; expected {OK}"
    assert set(np.unique(kept)) <= {0, 1}, f"it wrote {np.unique(kept)}; expected 0 or 1 for every token"
    return torch.from_numpy(kept).bool()


class CompiledProposer(WrappedProposer):
    """Drafts by a proposer's C function, and takes other steps with its `step`, as engines do.

    Args:
        begins: whether the first text of a request is passed to `begin_text`, as where a stream runs the function;
            otherwise it is passed to `step`.
    """

    def __init__(self, proposer: Proposer, *, begins: bool) -> None:
        super().__init__(proposer)
        assert isinstance(proposer, HasHostStep), f"{type(proposer).__name__}: `host_step`, but it has no such methods"
        self._stepping, self._begins, self._function = proposer, begins, proposer.host_step()

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        if self._stepping.is_outdated():
            self._stepping.update()
        if limits is None or draft is None or not batch.batch_size or (batch.reset_slots and not self._begins):
            self.proposer.step(batch, limits, draft)
            return
        num_new = batch.num_new.clone()
        for row, slot in enumerate(batch.slots.tolist()):
            if slot in batch.reset_slots:
                text = batch.tokens[int(batch.rows[row]), : int(batch.lengths[row])]
                self._stepping.begin_text(slot, text.numpy().copy())
                num_new[row] = 0
        status = _drafted_by(self._function, batch, num_new, limits, draft)
        assert status == OK, f"the C function of {type(self.proposer).__name__} returned {status}; expected {OK}"


def _drafted_by(step: HostStep, batch: EngineBatch, num_new: Tensor, limits: Tensor, draft: Draft) -> int:
    """Fill a draft by a C function; return its status."""
    slots, rows = batch.slots.long(), batch.rows.long()
    numbers = np.full(len(StepArgument), -7, np.int64)
    for which, number in {
        StepArgument.DATA: step.data,
        StepArgument.BATCH_SIZE: batch.batch_size,
        StepArgument.SLOTS: slots.data_ptr(),
        StepArgument.TABLE: batch.tokens.data_ptr(),
        StepArgument.NUM_ROWS: len(batch.tokens),
        StepArgument.STRIDE: batch.tokens.stride(0),
        StepArgument.TABLE_ROWS: rows.data_ptr(),
        StepArgument.LENGTHS: batch.lengths.data_ptr(),
        StepArgument.NUM_NEW: num_new.data_ptr(),
        StepArgument.LIMITS: limits.data_ptr(),
        StepArgument.IDS: draft.token_ids.data_ptr(),
        StepArgument.CONFIDENCE: draft.confidence.data_ptr(),
        StepArgument.DRAFT_STRIDE: draft.token_ids.stride(0),
        StepArgument.DRAFT_LENGTHS: draft.lengths.data_ptr(),
        StepArgument.SOURCES: draft.source.data_ptr(),
        StepArgument.PARENTS: 0 if draft.parents is None else draft.parents.data_ptr(),
    }.items():
        numbers[which] = number
    return C_FUNCTION(step.function)(numbers.ctypes.data)  # type: ignore[no-any-return]
