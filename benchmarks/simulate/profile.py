"""Profile of a server as its operator measures it at start-up or offline: what adaptive peers are given.

A policy under test receives none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from benchmarks.simulate.modes import CAPTURED_TOKENS, Mode, launch
from benchmarks.simulate.surface import Regime, StepWork, Surface
from benchmarks.simulate.trajectories import Array, Trajectories
from specplug.types.step import StepCost

TIMED_SHARES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 7.0, 15.0)
"""Draft tokens per row of the steps that an engine times at start."""

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

    def timed_steps(self, requests: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)) -> list[StepCost]:
        """Return the steps that an engine times at start, with noise of 2 %."""
        noise = np.random.default_rng(0)
        found = []
        for rows in requests:
            if self.mode.name == "padded":
                sizes = [(length, rows * length) for length in self.mode.lengths]
            else:
                sizes = [(0, 0), *((self.mode.gamma, max(1, round(rows * share))) for share in TIMED_SHARES)]
            for length, drafted in sizes:
                captured = Regime.UNIFORM if self.mode.name == "padded" or not drafted else Regime.MIXED
                if self.mode.name == "ragged" and 0 < drafted < rows * self.mode.gamma:
                    captured = Regime.PIECEWISE
                padded, regime = launch(rows + drafted, captured, 0)
                work = StepWork(rows, padded, rows * CONTEXT, length, regime)
                seconds = self.surface.seconds(work) * float(1.0 + 0.02 * noise.standard_normal())
                found.append(StepCost(rows, rows + drafted, rows * CONTEXT, length, seconds))
        return found

    @cached_property
    def acceptance(self) -> dict[int, float]:
        """Return tau by draft length, for the mode's captured lengths."""
        return {length: self.trajectories.mean_acceptance(length) for length in self.mode.lengths}

    def best_length(self, rows: int) -> int:
        """Return the constant draft length with the most tokens per second at a batch size."""
        return max(self.acceptance, key=lambda length: self.acceptance[length] / self.step(rows, length))
