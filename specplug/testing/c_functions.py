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
from specplug.types.host_step import OK, HostStep, StepArguments, TrimArguments
from specplug.types.plan import TrimLimits

C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)


def kept_by(step: HostStep, draft: Draft, limits: TrimLimits) -> Tensor:
    """Return the mask [B, N] bool of the tokens that a C function keeps; the memory that it is handed is poisoned."""
    rows, draft_length = draft.token_ids.shape
    workspace, kept = np.full((rows, draft_length), np.nan, np.float32), np.full((rows, draft_length), 7, np.uint8)
    entry = np.array(limits.entry)
    arguments = TrimArguments(
        data=step.data,
        batch_size=rows,
        draft_length=draft_length,
        token_budget=int(limits.token_budget),
        num_prices=limits.prices.numel(),
        prices=limits.prices.data_ptr(),
        prices_after=limits.prices_after.data_ptr(),
        decoding=limits.decoding.data_ptr(),
        confidence=draft.confidence.data_ptr(),
        parents=0 if draft.parents is None else draft.parents.data_ptr(),
        draft_stride=draft.confidence.stride(0),
        draft_lengths=draft.lengths.data_ptr(),
        workspace=workspace.ctypes.data,
        kept=kept.ctypes.data,
        entry=entry.ctypes.data,
    )
    status = C_FUNCTION(step.function)(arguments.address)
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
    arguments = StepArguments(
        data=step.data,
        batch_size=batch.batch_size,
        slots=slots.data_ptr(),
        table=batch.tokens.data_ptr(),
        num_rows=len(batch.tokens),
        stride=batch.tokens.stride(0),
        table_rows=rows.data_ptr(),
        lengths=batch.lengths.data_ptr(),
        num_new=num_new.data_ptr(),
        limits=limits.data_ptr(),
        ids=draft.token_ids.data_ptr(),
        confidence=draft.confidence.data_ptr(),
        draft_stride=draft.token_ids.stride(0),
        draft_lengths=draft.lengths.data_ptr(),
        sources=draft.source.data_ptr(),
        parents=0 if draft.parents is None else draft.parents.data_ptr(),
    )
    return C_FUNCTION(step.function)(arguments.address)  # type: ignore[no-any-return]
