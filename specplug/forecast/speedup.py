"""Speed-up over decoding without drafts, by batch size and draft length, and the draft length that gives most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specplug.forecast.acceptance import DraftAcceptance, acceptance_for
from specplug.forecast.step_cost import CostModel


@dataclass(frozen=True, slots=True)
class DraftLengthForecast:
    """Forecast for one draft length.

    Attributes:
        gamma: most draft tokens per request and step; 0 is without speculation.
        tau: tokens emitted per request and step, bonus included.
        tokens: tokens that the target computes per request and step.
        cost: of the step, drafting included, in steps without drafts.
        speedup: `tau` / `cost`.
    """

    gamma: int
    tau: float
    tokens: float
    cost: float
    speedup: float


@dataclass(frozen=True, slots=True)
class BatchForecast:
    """Forecast for one batch size, requests that decode together, by draft length from 0.

    Attributes:
        plain_step: cost of a step without drafts, in the unit of the step cost.
        draft_cost: cost of drafting one token for each request, in steps without drafts.
        break_even: the least probability alpha, the same at every position of full drafts, above which some draft
            length gains; None if none does even at 1.
    """

    batch: int
    plain_step: float
    draft_cost: float
    break_even: float | None
    lengths: tuple[DraftLengthForecast, ...]

    @property
    def best(self) -> DraftLengthForecast:
        """The draft length with the highest speed-up, the shortest of equals."""
        return max(self.lengths, key=lambda each: each.speedup)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast ready for JSON."""
        return {**asdict(self), "best": asdict(self.best)}


def forecast(
    acceptance: DraftAcceptance,
    target: CostModel,
    batches: Sequence[int],
    gamma: int,
    *,
    draft_cost: Callable[[int], float],
    overhead: float = 0.0,
) -> list[BatchForecast]:
    """Return the forecast for each batch size, for draft lengths up to `gamma`, or as far as the acceptance reaches.

    Args:
        draft_cost: cost of drafting one token for each request of a batch, in steps of this batch without drafts.
        overhead: fixed cost of drafting per step, in the same unit.
    """
    longest = min(gamma, acceptance.longest)
    return [_of_batch(acceptance, target, batch, longest, draft_cost(batch), overhead) for batch in batches]


def _of_batch(
    acceptance: DraftAcceptance, target: CostModel, batch: int, longest: int, draft_cost: float, overhead: float
) -> BatchForecast:
    plain = target.step(batch, 1)

    def cost(gamma: int, tokens: float) -> float:
        return target.step(batch, tokens) / plain + (gamma * draft_cost + overhead if gamma else 0.0)

    lengths = []
    for gamma in range(longest + 1):
        tau, tokens = acceptance.tau(gamma), acceptance.tokens(gamma)
        ratio = cost(gamma, tokens)
        lengths.append(DraftLengthForecast(gamma, tau, tokens, ratio, tau / ratio))
    needed = [acceptance_for(cost(gamma, gamma + 1), gamma) for gamma in range(1, longest + 1)]
    break_even = min((alpha for alpha in needed if alpha is not None), default=None)
    return BatchForecast(batch, plain, draft_cost, break_even, tuple(lengths))
