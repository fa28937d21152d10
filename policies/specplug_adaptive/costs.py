"""What a draft token has to be worth where no other policy says so, and how far drafts are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.cost import StepCosts, prices_of
from specplug.types.plan import HostStats, Price, StepReport


class Worthwhile(NamedTuple):
    """The lengths of drafts whose tokens are worth their prices.

    Attributes:
        lengths: [B] int64, at least 1.
        gain: what the tokens beyond them would cost more than they yield, as a share of what the step yields.
        emitted: tokens that the step is expected to emit with these lengths, and with the longest drafts.
    """

    lengths: npt.NDArray[np.int64]
    gain: float
    emitted: tuple[float, float]


def worthwhile(
    rates: npt.NDArray[np.float64], most: int, prices: Sequence[Price], least: npt.NDArray[np.int64] | int = 1
) -> Worthwhile:
    """Return the draft lengths of requests that are worth verifying.

    The token at position j survives with probability rate^j.  The likeliest tokens of the batch come first, and each is
    worth verifying if it survives by the price after those before it.

    Args:
        rates: [B] float64, each request's acceptance rate.
        most: the longest draft.
        prices: as in a plan, in any number.
        least: [B] int64, or of every request: lengths to draft in any case.
    """
    place = np.arange(most)
    survival = rates[:, None] ** (place + 1)
    ordered = np.sort(survival, axis=None)[::-1]
    cost = np.zeros(ordered.size)
    for price in prices:
        cost[price.after :] = price.survival
    count = int(np.count_nonzero(ordered >= cost))  # a prefix, as prices rise and survival falls
    threshold = ordered[count - 1] if count else np.inf
    lengths = np.clip(np.count_nonzero(survival >= threshold, axis=1), np.maximum(least, 1), most)
    kept = place < lengths[:, None]
    emitted, lost = float(rates.size + survival[kept].sum()), float(survival[~kept].sum())
    gain = (float(cost[int(lengths.sum()) :].sum()) - lost) / emitted
    return Worthwhile(lengths, gain, (emitted, emitted + lost))


_TOKENS_PER_ROW = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)
"""Draft tokens per row at which the cost of a step is predicted; the first one of a row is not in question."""

_TRUST, _MEMORY = 8.0, 0.95
"""Number of readings without gain that the speed-up starts with, and the share that is left of it after each."""


class TokenCosts:
    """Prices of draft tokens: what the time that they take would yield elsewhere.

    Until steps are measured, tokens up to `saturation` per step are free.
    """

    def __init__(self, saturation: int) -> None:
        self._costs = StepCosts(lambda tokens: max(1.0, tokens / saturation))
        self._tokens = self._cost = _TRUST  # of steps with drafts, per row and relative to a step without
        self._rows = self._accepted = self._verified = 0  # since the last reading

    def observe(self, report: StepReport) -> None:
        """Learn from a step's results and cost."""
        if report.cost is not None:
            self._costs.observe(report.cost)
        if report.draft_length:
            self._rows += report.requests
            self._accepted += report.accepted
            self._verified += report.verified

    def prices(self, stats: HostStats, most: int) -> tuple[Price, ...]:
        """Return the prices of tokens beyond one per request.  `stats` is of a step with requests."""
        requests = len(stats.requests)
        extra = sorted({round(min(each, most) * requests) for each in _TOKENS_PER_ROW})
        lately = round(requests * self._verified / max(1, self._rows))
        plain, drafted, *seconds = self._seconds(stats, [lately, *extra], most)
        if self._rows:
            self._tokens = _MEMORY * self._tokens + 1.0 + self._accepted / self._rows
            self._cost = _MEMORY * self._cost + drafted / plain
            self._rows = self._accepted = self._verified = 0
        rate = requests / plain * max(1.0, self._tokens / self._cost)
        return prices_of(extra, seconds, rate)

    def gain(self, stats: HostStats, most: int, drafted: int, emitted: tuple[float, float]) -> float:
        """Return how much more tokens per second so many draft tokens emit than drafts of `most` tokens, less 1.

        Unlike prices, this knows what measured steps of either kind turned out to cost, with or without CUDA graphs.
        """
        _, capped, longest = self._seconds(stats, [drafted, len(stats.requests) * most], most)
        return emitted[0] / capped * longest / emitted[1] - 1.0

    def _seconds(self, stats: HostStats, extra: list[int], draft_length: int) -> list[float]:
        """Return the predicted seconds of a step without drafts and of steps with so many draft tokens.

        Those of prompts are left out; at first they are relative costs.
        """
        requests, last, context = len(stats.requests), stats.last_step, 0.0
        if last is not None and last.requests:
            context = last.context_tokens * requests / last.requests
        drafted = [0, *extra]
        lengths = [draft_length if each else 0 for each in drafted]
        tokens = [requests + each for each in drafted]
        found: list[float] = self._costs.seconds_beside_prompts(requests, context, tokens, lengths).tolist()
        return found
