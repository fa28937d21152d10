"""Modes: how a simulated engine verifies drafts of different lengths, and what it captures graphs for.

Each mode declares the `EngineCaps` that an adapter declares for an engine in that mode.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from benchmarks.simulate.surface import Regime
from benchmarks.simulate.trajectories import Array
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged

CAPTURED_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts that graphs are captured for, as vLLM does by default; steps are padded to the next one."""

CAPTURED_LENGTHS = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31)
"""Draft lengths that graphs are captured for where rows are padded."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How rows whose drafts differ in length are verified: padded, ragged, or cut on the device."""

    name: str
    lag: int  # steps between a plan and the verification that it shapes; 0 is the step that it is made for
    gamma: int  # most draft tokens per row

    @property
    def caps(self) -> EngineCaps:
        """Return the capabilities that the engine declares to policies."""
        padded = self.name == "padded"
        return EngineCaps(
            max_draft_length=self.gamma,
            captured_draft_lengths=self.lengths if padded else (),
            ragged=Ragged.PADDED if padded else Ragged.NATIVE,
            draft_length_change=DraftLengthChange.CAPTURED if padded else DraftLengthChange.FREE,
            verifies_budget=self.name == "cut",
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the captured draft lengths up to gamma, and gamma."""
        return tuple(sorted({length for length in CAPTURED_LENGTHS if length < self.gamma} | {self.gamma}))

    def charge(self, kept: Array, draft_length: int, budget: int | None) -> tuple[int, Regime]:
        """Return the tokens that the target runs for the decoding rows, and the regime of a step without prompt tokens.

        Args:
            kept: [B] int64, draft tokens that each row verifies.
            draft_length: draft length of the step's plan.
            budget: the plan's token budget, if it has one.
        """
        rows = kept.size
        if self.name == "padded":
            return rows * (draft_length + 1), Regime.UNIFORM
        if self.name == "cut":
            places = rows * draft_length
            drafted = places if budget is None else min(max(0, budget), places)
            return rows + drafted, Regime.UNIFORM if drafted in (0, places) else Regime.MIXED
        drafted, is_uniform = int(kept.sum()), kept.min(initial=self.gamma) == kept.max(initial=0)
        return rows + drafted, Regime.UNIFORM if is_uniform or not rows else Regime.PIECEWISE


def launch(tokens: int, captured: Regime, prefill_tokens: int) -> tuple[int, Regime]:
    """Return the tokens of the decoding rows and of the graph's padding, and the regime of the step.

    Args:
        tokens, captured: result of `Mode.charge`.
        prefill_tokens: prompt tokens in the step.
    """
    total = tokens + prefill_tokens
    if total > CAPTURED_TOKENS[-1] or not tokens:
        return tokens, Regime.EAGER if total > CAPTURED_TOKENS[-1] else Regime.PIECEWISE
    padding = CAPTURED_TOKENS[bisect.bisect_left(CAPTURED_TOKENS, total)] - total
    return tokens + padding, Regime.PIECEWISE if prefill_tokens else captured


def modes(gamma: int) -> dict[str, Mode]:
    """Return the modes by name, with the lag of the engine that has them."""
    lags = {"padded": 2, "ragged": 1, "cut": 2}  # vLLM V2 with async scheduling, V1, and V2 with adaptive verification
    return {name: Mode(name, lag, gamma) for name, lag in lags.items()}
