"""The transfers of a step: an engine's own tensors, the host memory of the step, and the choice between their forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specplug.errors import EngineError


class EngineRows(NamedTuple):
    """What an engine's step found, on its device: B rows or more, S slots.

    Attributes:
        idx_mapping: [>= B] int32 or int64, the slot of each row.
        total_len: tokens so far, int32 or int64: [S] by slot, or [>= B] by row.
        all_token_ids: [S, L] int32, by slot; rows are contiguous, and may be more than L apart.
        num_sampled: [>= B] int32 or int64, tokens that the step emitted for each row; 0 for a row within its prompt.
        num_rejected: [>= B] int32 or int64, draft tokens of each row that the step rejected.
        lengths_by_row: whether `total_len` is by row.
        lacking: tokens of each row that `total_len` does not count.
        engine_ids: [>= B, >= G] int32 or int64, the draft of the engine's own drafter, by row, -1 after its end; rows
            are contiguous.
    """

    idx_mapping: Tensor
    total_len: Tensor
    all_token_ids: Tensor
    num_sampled: Tensor
    num_rejected: Tensor
    lengths_by_row: bool = False
    lacking: int = 0
    engine_ids: Tensor | None = None

    def contiguous(self) -> EngineRows:
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
        confidence: [>= B, K] float32, 0 for padding; None if the engine does not need it.
        lengths: [>= B] int32; None as above.
        parents: [>= B, K] int32, those of a chain for padding; None for chains.
        from_engine: [>= B] int32, how many of the first tokens are those of the engine's own drafter; None as above.
    """

    ids: Tensor
    confidence: Tensor | None = None
    lengths: Tensor | None = None
    parents: Tensor | None = None
    from_engine: Tensor | None = None


@dataclass(slots=True)
class StepBuffers:
    """Tensors on the CPU, pinned if the engine's device is a GPU: R rows at most, drafts of at most K tokens, W tokens.

    A step of B rows uses the first B entries.  Kernels address pinned memory directly, so a step's buffers may be used
    for another step, or be freed, only after the event that is recorded after its `unpack`.

    Attributes:
        draft_rows: [R] int32, set by the host before the launch: the draft of each row of the engine; -1 for none.
        lengths: [R] int32, set by `pack`, like `emitted`, `verified` and `newest`, by the engine's rows: tokens so far.
        emitted: [R] int32, tokens that the step emitted.
        verified: [R] int32, draft tokens that the step verified.
        newest: [R, W] int32, left to right, of which `pack` writes the last `packed`: as many tokens of each row.  W is
            a power of two.  Entries for positions before a text's start keep their old values.
        ids: [R, K] int32, set by the host function, like `confidence` and `draft_lengths`, by draft: token ids.
        confidence: [R, K] float32.
        draft_lengths: [R] int32, tokens of each draft; entries of the others after these are undefined.
        parents: [R, K] int32, by draft, like `ids`; None if drafts are chains.
        engine_ids: [R, G] int32, set by `pack`, by the engine's rows: the draft of the engine's own drafter.
        from_engine: [R] int32, by draft, like `draft_lengths`: how many of its first tokens are those.
        packed: how many of the newest tokens the step needs, at most W.
        pinned: whether the memory is pinned.
    """

    draft_rows: Tensor
    lengths: Tensor
    emitted: Tensor
    verified: Tensor
    newest: Tensor
    ids: Tensor
    confidence: Tensor
    draft_lengths: Tensor
    parents: Tensor | None
    engine_ids: Tensor
    from_engine: Tensor
    packed: int
    pinned: bool

    @classmethod
    def allocate(
        cls,
        max_rows: int,
        draft_length: int,
        window: int,
        *,
        pinned: bool,
        trees: bool = False,
        engine_tokens: int = 0,
    ) -> StepBuffers:
        """Return buffers for at most R rows and K draft tokens, in which no row drafts.

        Args:
            max_rows: R.
            draft_length: K.
            window: newest tokens that a step packs; W is the next power of two.
            pinned: allocate pinned memory, which needs a GPU.
            trees: whether drafts have parents.
            engine_tokens: G, 0 if the engine has no drafter.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=pinned)

        return cls(
            draft_rows=zeros(max_rows).fill_(-1),
            lengths=zeros(max_rows),
            emitted=zeros(max_rows),
            verified=zeros(max_rows),
            newest=zeros(max_rows, 1 << max(window - 1, 0).bit_length()),
            ids=zeros(max_rows, draft_length),
            confidence=zeros(max_rows, draft_length, dtype=torch.float32),
            draft_lengths=zeros(max_rows),
            parents=zeros(max_rows, draft_length) if trees else None,
            engine_ids=zeros(max_rows, engine_tokens),
            from_engine=zeros(max_rows),
            packed=window,
            pinned=pinned,
        )


class Transfers(Protocol):
    """A module with both transfers of a step of B rows.

    Neither reads or writes entries of per-row tensors after the first B.
    """

    def pack(self, buffers: StepBuffers, batch_size: int, rows: EngineRows) -> None:
        """Write `lengths`, `emitted`, `verified`, `newest` and `engine_ids` of the first B rows.

        Args:
            buffers: the step's buffers, which state how many tokens are packed.
            batch_size: B.
            rows: the engine's rows.
        """

    def unpack(self, buffers: StepBuffers, batch_size: int, draft_length: int, outputs: DraftOutputs) -> None:
        """Write the drafts of the first B rows of the engine, padded with each row's newest token and confidence 0.

        Args:
            buffers: the step's buffers, for drafts of at most K tokens; row b's draft is the one numbered
                `draft_rows[b]`.
            batch_size: B.
            draft_length: most draft tokens of this step, at most K; `draft_lengths` are clamped to it.
            outputs: the engine's tensors, of K columns or fewer.
        """


def transfers_for(device: torch.device) -> Transfers:
    """Return the transfers between a device and pinned memory.

    These are Triton's kernels on a GPU, and on a CPU where Triton's interpreter is on.  Elsewhere they are the compiled
    functions of `host_kernels`.

    Raises:
        EngineError: the device is a GPU, and Triton is not installed.
    """
    from specplug.pipeline.stream import host_kernels

    try:
        from specplug.pipeline.stream import kernels
    except ImportError as error:
        if device.type == "cuda":
            raise EngineError.build(
                "cannot draft on the host for a GPU",
                who="specplug",
                found=f"no Triton for {device} ({error})",
                expected="Triton, whose kernels move tokens and drafts without waiting for the GPU",
                remedy="Install it: pip install triton",
            ) from error
        return host_kernels
    return kernels if device.type == "cuda" or kernels.INTERPRETED else host_kernels
