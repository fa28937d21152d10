"""Profile of a server as its operator measures it at start-up or offline: what adaptive peers are given.

A policy under test receives none of this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.simulate.modes import CAPTURED_TOKENS, Mode, launch
from benchmarks.simulate.surface import Regime, StepWork, Surface
from benchmarks.simulate.trajectories import Array, Trajectories

CONTEXT = 1024
"""Context tokens per request at which curves are profiled."""

BEYOND = (768, 1024, 2048, 4096, 8192)
"""Token counts beyond the captured ones that are profiled."""


@dataclass
class Profile:
    """Measurements of one server in one mode, without noise, and what peers know of the current step."""

    surface: Surface
    mode: Mode
    trajectories: Trajectories  # traffic like that to be served, for the acceptance of constant draft lengths
    prefill_tokens: int = 0  # prompt tokens of the step that is planned
    matches: Array = field(default_factory=lambda: np.zeros(0, np.uint8))  # [B] uint8, see `Trajectories.matches`

    @cached_property
    def verification(self) -> tuple[Array, Array]:
        """Return token counts, ascending, and the seconds of the target's kernels for each, as [n] float64."""
        captured = Regime.PIECEWISE if self.mode.name == "ragged" else Regime.MIXED
        sizes, seconds = np.array([*CAPTURED_TOKENS, *BEYOND]), []
        for size in sizes.tolist():
            rows = max(1, size // (self.mode.gamma + 1))
            padded, regime = launch(size, captured, 0)
            work = StepWork(rows, padded, rows * CONTEXT, self.mode.gamma, regime)
            seconds.append(self.surface.forward_seconds(work))
        return sizes, np.maximum.accumulate(seconds)

    def drafting(self, rows: int) -> float:
        """Return the seconds of the proposer for so many rows."""
        host = self.surface.host
        return host.drafting + host.drafting_per_row * rows + host.drafting_per_position * self.mode.gamma

    def step(self, rows: int, draft_length: int) -> float:
        """Return the seconds of a step of equally long drafts."""
        padded, regime = launch(rows * (draft_length + 1), Regime.UNIFORM, 0)
        return self.surface.seconds(StepWork(rows, padded, rows * CONTEXT, draft_length, regime))

    @cached_property
    def acceptance(self) -> dict[int, float]:
        """Return tau by draft length, for the mode's captured lengths."""
        return {length: self.trajectories.mean_acceptance(length) for length in self.mode.lengths}

    def best_length(self, rows: int) -> int:
        """Return the constant draft length with the most tokens per second at a batch size."""
        return max(self.acceptance, key=lambda length: self.acceptance[length] / self.step(rows, length))
