"""A step of `DeviceSteps`, and the engine's own tensors that it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from specplug.types.step import Draft, StepPlan


class EngineTensors(NamedTuple):
    """What an engine's step has found: tensors of the engine, on its device, of B rows or more and of S slots.

    They are apart from `Rows`, which lasts from step to step, as many engines allocate them anew in each step.

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

    def keep(self, kept: Tensor | list[int] | None) -> EngineTensors:
        """Return these with the rows `kept` alone in `idx_mapping`, the counts and `engine_ids`; all if it is None."""
        if kept is None:
            return self
        names = ("idx_mapping", "num_sampled", "num_rejected", *["engine_ids"] * (self.engine_ids is not None))
        return self._replace(**{name: getattr(self, name)[kept] for name in names})

    def as_contiguous(self) -> EngineTensors:
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


@dataclass(slots=True)
class DeviceStep:
    """One step that is not repeated: what it is called with, what follows from that, and what came of it.

    It lives as long as the call, or its repetition; what a planner keeps of a step is a `StepRecord`.

    Attributes:
        engine, outputs, last_sampled, temperature, plan, reports: see `DeviceSteps.take`.
        order: [>= B] int32, the engine's row of each row.
        places: [>= E] int32, the row of each of the engine's E rows, -1 for others.
        caps: [>= B] int32, the policy's, by row.
        draft: the view of the buffer for the tokens that the proposer may draft, which is more than the plan's where
            the step `is_reported`; at the end that for the plan's.
        is_reported: whether it reports what its drafts are expected to yield.
        has_record: whether the device writes a record of it if something is drafted.
        has_drafted, is_cut: set once it has drafted: whether the proposer succeeded, and whether the policy has cut.
        is_finished: set once it has drafted: whether the proposer's kernels have finished it.
        only_launched: set once it has drafted: whether it did nothing but launch kernels.
    """

    engine: EngineTensors
    outputs: DraftOutputs
    last_sampled: Tensor
    temperature: Tensor
    plan: StepPlan
    reports: bool
    order: Tensor = field(init=False)
    places: Tensor = field(init=False)
    caps: Tensor = field(init=False)
    draft: Draft = field(init=False)
    is_reported: bool = False
    has_record: bool = False
    has_drafted: bool = False
    is_cut: bool = False
    is_finished: bool = False
    only_launched: bool = False
