"""The settings and the plan half: caps on the drafts of single requests, by the acceptance learnt of each.

Where no other policy says what a draft token has to be worth, step costs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from specplug.cost import StepCosts, prices_of
from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, Price, RequestStats, StepPlan, StepReport

Array = npt.NDArray[np.float64]

_FIRST_RATE, _FIRST_TOKENS = 0.6, 16.0
"""Acceptance to assume before anything was verified, and the number of tokens that it counts as much as."""

_PRIOR_TOKENS = 4.0
"""Number of a request's tokens that the average of all requests counts as much as."""

_MEMORY, _LONG_MEMORY = 32.0, 1024.0
"""Number of decided tokens after which a request's token, or one of the average, counts half."""


class _Decided(NamedTuple):
    """What is known of a request: its totals when they were read, and faded counts of its decided tokens."""

    accepted: int = 0
    rejected: int = 0
    good: float = 0.0
    bad: float = 0.0


_NEW = _Decided()


class RequestAcceptance:
    """The rate at which a request's next draft token is accepted, if those before it are.

    A draft that is rejected after n accepted tokens decides n + 1 tokens; those beyond are undecided.  A request's rate
    is drawn to the average of the server, and what was decided long ago counts less.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Decided] = {}
        self._good, self._bad = _FIRST_RATE * _FIRST_TOKENS, (1.0 - _FIRST_RATE) * _FIRST_TOKENS

    @property
    def average(self) -> float:
        """The rate of all requests together."""
        return self._good / (self._good + self._bad)

    def read(self, requests: Sequence[RequestStats]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Learn what happened since the last reading, and forget requests that are not there.

        Returns:
            rates: [B] float64.
            swept: [B] bool, whether all of the request's drafts since then were accepted, and there were some.
        """
        known: dict[str, _Decided] = {}
        rows: list[tuple[float, float, int, int]] = []
        for name, _, _, _, _, accepted, rejected in requests:
            before = self._known.get(name, _NEW)
            gained, lost = accepted - before.accepted, rejected - before.rejected
            keep = _MEMORY / (_MEMORY + gained + lost)
            seen = known[name] = _Decided(accepted, rejected, keep * before.good + gained, keep * before.bad + lost)
            rows.append((seen.good, seen.bad, gained, lost))
        self._known = known
        good, bad, gains, losses = np.array(rows).T
        keep = _LONG_MEMORY / (_LONG_MEMORY + gains.sum() + losses.sum())
        self._good, self._bad = float(keep * self._good + gains.sum()), float(keep * self._bad + losses.sum())
        return (good + _PRIOR_TOKENS * self.average) / (good + bad + _PRIOR_TOKENS), (gains > 0) & (losses == 0)


class AdaptiveOptions(BaseModel):
    """How often the acceptance of requests is read, and what a step costs until that is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_every: int = Field(default=4, ge=1, description="steps between two readings of the requests' acceptance")
    saturation: int = Field(
        default=256, ge=1, description="tokens per step up to which more are free, until step times are known"
    )


_LEAST = 1e-3
"""Survival probability below which a price is none."""

_GAIN = 0.05
"""Least predicted gain of caps, since rows of different lengths may take a step off its CUDA graph."""


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine: without caps where a request's shorter draft is verified at full length."""
    return AdaptivePlanner(context) if caps_save(context.caps) else NoCaps(context)


def caps_save(caps: EngineCaps) -> bool:
    """Return whether an engine verifies less if single requests are capped.

    The nodes of a tree have no positions that a rate could be learnt for.
    """
    verifies_less = caps.ragged in (Ragged.NATIVE, Ragged.COSTS_FULL_GRAPH) and not caps.verifies_budget
    return verifies_less and not caps.trees and caps.max_draft_length > 1


class NoCaps(Planner):
    """Plans the longest draft at every step."""

    is_constant = True

    def __init__(self, context: PluginContext) -> None:
        self._plan = StepPlan(context.caps.fit_draft_length(context.caps.max_draft_length))

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the constant plan."""
        return self._plan


class AdaptivePlanner(Planner):
    """Caps each request at the last draft token that its own acceptance makes worth verifying, at least one.

    What a token has to be worth is the price of the newest plan, if another policy states any, and else follows from
    learnt step costs.

    A request whose drafts were all accepted may draft twice as far as before.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: AdaptiveOptions = context.options or AdaptiveOptions()
        self._most = context.caps.fit_draft_length(context.caps.max_draft_length)
        self._acceptance, self._costs = RequestAcceptance(), TokenCosts(self._options.saturation)
        self._is_priced = False  # by another policy
        self._uncapped = self._plan = StepPlan(self._most)
        self._next = 0  # step of the next reading

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the caps, which are set anew every few steps."""
        newest = stats.last_plan or self._uncapped
        if stats.step >= self._next and newest.draft_length and stats.requests:
            self._next = stats.step + self._options.read_every
            self._plan = self._capped(stats, newest)
        return self._plan

    def observe(self, report: StepReport) -> None:
        """Learn what steps cost, unless another policy does."""
        if not self._is_priced:
            self._costs.observe(report)

    def status(self) -> dict[str, Any]:
        """Return the average acceptance and the number of requests that are capped, as plain data."""
        return {"acceptance": round(self._acceptance.average, 3), "capped_requests": len(self._plan.caps)}

    def _capped(self, stats: HostStats, newest: StepPlan) -> StepPlan:
        is_limited = newest.draft_length < self._plan.draft_length  # by another policy
        most = newest.draft_length if is_limited else self._most
        self._is_priced = bool(newest.prices)
        prices = newest.prices or self._costs.prices(stats, most)
        places = len(stats.requests) * most
        if not any(price.survival > _LEAST and price.after < places for price in prices):
            return self._uncapped  # nothing can cost too much, so the figures of single requests are not read
        rates, swept = self._acceptance.read(stats.requests)
        names = [request.request_id for request in stats.requests]
        before = np.array([self._plan.draft_length_for(name) for name in names])
        lengths, gain, emitted = worthwhile(rates, most, prices, np.where(swept, 2 * before, 1))
        if not self._is_priced:
            gain = self._costs.gain(stats, most, int(lengths.sum()), emitted)
        if gain < _GAIN:
            return self._uncapped
        longest = int(lengths.max())
        caps = {name: cap for name, cap in zip(names, lengths.tolist(), strict=True) if cap < longest}
        plan = StepPlan(longest if longest < most else self._most, caps=caps)
        return self._plan if plan == self._plan else plan


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

_TRUST, _STEP_MEMORY = 8.0, 0.95
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
            self._tokens = _STEP_MEMORY * self._tokens + 1.0 + self._accepted / self._rows
            self._cost = _STEP_MEMORY * self._cost + drafted / plain
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
