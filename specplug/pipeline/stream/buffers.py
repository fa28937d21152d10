"""The host memory of one step: what the host, the kernels and the host function hand to each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    packed: int
    pinned: bool

    @classmethod
    def allocate(
        cls, max_rows: int, draft_length: int, window: int, *, pinned: bool, trees: bool = False
    ) -> StepBuffers:
        """Return buffers for at most R rows and K draft tokens, in which no row drafts.

        Args:
            max_rows: R.
            draft_length: K.
            window: newest tokens that a step packs; W is the next power of two.
            pinned: allocate pinned memory, which needs a GPU.
            trees: whether drafts have parents.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, pin_memory=pinned)

        return cls(
            draft_rows=zeros(max_rows).fill_(-1),
            lengths=zeros(max_rows),
            emitted=zeros(max_rows),
            verified=zeros(max_rows),
            newest=zeros(max_rows, _next_power_of_2(window)),
            ids=zeros(max_rows, draft_length),
            confidence=zeros(max_rows, draft_length, dtype=torch.float32),
            draft_lengths=zeros(max_rows),
            parents=zeros(max_rows, draft_length) if trees else None,
            packed=window,
            pinned=pinned,
        )

    @property
    def window(self) -> int:
        """W."""
        return self.newest.shape[1]


def _next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
