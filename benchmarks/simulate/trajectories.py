"""Trajectories: for every position of recorded outputs, the draft there and how much of it the output accepts.

A simulation of a thousand requests at batch size 512 then looks drafts up instead of proposing them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Drafts(NamedTuple):
    """The drafts of B rows, at most N tokens each."""

    lengths: Array  # [B] int64
    accepted: Array  # [B] int64, the tokens that the target accepts if all are verified
    confidence: Array  # [B, N] float32, 0 beyond the length
    source: Array  # [B, N] int32, -1 beyond the length


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """The drafts of R requests at P positions in all; a position is the number of output tokens known, from 1.

    Position p of request r is entry `starts[r] + p - 1`.
    """

    prompts: Array  # [R] int64, prompt tokens
    outputs: Array  # [R] int64, output tokens, of which prefill emits the first
    lengths: Array  # [P] uint8, tokens of the draft
    accepted: Array  # [P] uint8, the longest common prefix of the draft and the rest of the output
    confidence: Array  # [P, N] float32, 0 beyond the length
    source: Array  # [P, N] int8, index into `sources`, -1 beyond the length
    matches: Array  # [P] uint8, bucket of the longest earlier match in the request's own text, see `recording`
    sources: Array  # names of the proposer's sources

    @property
    def starts(self) -> Array:
        """Return [R] int64, the entry of each request's position 1."""
        ends = np.cumsum(self.outputs - 1)
        return np.asarray(ends - (self.outputs - 1))

    def drafts(self, entries: Array, draft_length: int) -> Drafts:
        """Return the drafts at `entries` [B], cut to `draft_length` tokens."""
        cut = self.lengths[entries].astype(np.int64).clip(max=draft_length)
        return Drafts(
            cut,
            np.minimum(self.accepted[entries].astype(np.int64), cut),
            np.ascontiguousarray(self.confidence[entries, :draft_length]),
            self.source[entries, :draft_length].astype(np.int32),
        )

    def mean_acceptance(self, draft_length: int) -> float:
        """Return tau of all requests together if each step verifies the draft there up to `draft_length` tokens."""
        left, entries, steps = self.outputs - 1, self.starts.copy(), 0
        while (running := left > 0).any():
            left, entries = left[running], entries[running]
            emitted = np.minimum(self.accepted[entries].astype(np.int64), draft_length) + 1
            steps += entries.size
            left, entries = left - emitted, entries + emitted
        return float((self.outputs - 1).sum() / max(1, steps))

    def save(self, path: Path) -> None:
        """Write a compressed `.npz` file."""
        with path.open("wb") as file:
            np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Trajectories:
        """Read a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(**{field.name: file[field.name] for field in fields(cls)})
