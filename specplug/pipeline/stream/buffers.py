"""The transfers of a step: the host memory of the step, and the choice between their forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specplug.errors import EngineError
from specplug.pipeline.engine_rows import DraftOutputs, EngineRows


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
