"""EngineRows and DraftOutputs: an engine's own tensors, which a step reads and writes."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class EngineRows(NamedTuple):
    """What an engine's step found, on its device: B rows or more, S slots.

    Attributes:
        idx_mapping: [>= B] int32 or int64, the slot of each row.
        total_len: tokens so far, int32 or int64: [S] by slot, or [>= B] by row.
        all_token_ids: [S, L] int32, by slot; rows are contiguous, and may be more than L apart.
        num_sampled: [>= B] int32 or int64, tokens that the step emitted for each row; 0 for a row within its prompt.
        num_rejected: [>= B] int32 or int64, draft tokens of each row that the step rejected.
        lengths_by_row: whether `total_len` is by row.
        num_uncounted: tokens of each row that `total_len` does not count.
        engine_ids: [>= B, >= G] int32 or int64, the draft of the engine's own drafter, by row, -1 after its end; rows
            are contiguous.
    """

    idx_mapping: Tensor
    total_len: Tensor
    all_token_ids: Tensor
    num_sampled: Tensor
    num_rejected: Tensor
    lengths_by_row: bool = False
    num_uncounted: int = 0
    engine_ids: Tensor | None = None

    def as_contiguous(self) -> EngineRows:
        """Return the rows with vectors as kernels read them, whose elements may lie apart in an engine's memory."""
        return self._replace(
            idx_mapping=self.idx_mapping.contiguous(),
            total_len=self.total_len.contiguous(),
            num_sampled=self.num_sampled.contiguous(),
            num_rejected=self.num_rejected.contiguous(),
        )


class DraftOutputs(NamedTuple):
    """Where the drafts of B rows or more go, on the engine's device; rows are contiguous, and may be more than K apart.

    Attributes:
        ids: [>= B, K] int32 or int64, padded with each row's newest token.
        confidence: [>= B, K] float32, 0 for padding.
        from_engine: [>= B] int32, how many of the first tokens are those of the engine's own drafter; None if the
            engine does not need it.
    """

    ids: Tensor
    confidence: Tensor
    from_engine: Tensor | None = None
