"""The plan half: caps on the drafts of single requests, where shorter drafts of one save anything."""

from __future__ import annotations

from typing import Any

import numpy as np

from specplug.interfaces import Planner, PluginContext
from specplug.types.caps import EngineCaps, Feedback, Ragged
from specplug.types.plan import HostStats, Price, StepPlan
from specplug_adaptive.acceptance import Acceptance
from specplug_adaptive.caps import worthwhile_lengths
from specplug_adaptive.options import AdaptiveOptions


def build(context: PluginContext) -> Planner:
    """Return the plan half for an engine: without caps where a request's shorter draft is verified at full length."""
    return AdaptivePlanner(context) if caps_save(context.caps) else NoCaps(context)


def caps_save(caps: EngineCaps) -> bool:
    """Return whether an engine verifies less if single requests are capped, and reports what was accepted.

    The nodes of a tree have no positions that a rate could be learnt for.
    """
    verifies_less = caps.ragged in (Ragged.NATIVE, Ragged.COSTS_FULL_GRAPH) and not caps.verifies_budget
    return verifies_less and not caps.trees and caps.feedback is not Feedback.NONE and caps.max_draft_length > 1


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

    What a token has to be worth is the price of the newest plan, if another policy states any.  Otherwise a step costs
    `max(1, tokens / saturation)`, so that tokens are free up to `saturation`, and further ones cost what the tokens of
    a step yield on average.

    A request whose drafts were all accepted may draft twice as far as before.
    """

    def __init__(self, context: PluginContext) -> None:
        self._options: AdaptiveOptions = context.options or AdaptiveOptions()
        self._most = context.caps.fit_draft_length(context.caps.max_draft_length)
        self._acceptance = Acceptance()
        self._uncapped = self._plan = StepPlan(self._most)
        self._next = 0  # step of the next reading

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the caps, which are set anew every few steps."""
        newest = stats.last_plan or self._uncapped
        if stats.step >= self._next and newest.draft_length:
            self._next = stats.step + self._options.read_every
            self._plan = self._capped(stats, newest)
        return self._plan

    def status(self) -> dict[str, Any]:
        """Return the average acceptance and the number of requests that are capped, as plain data."""
        return {"acceptance": round(self._acceptance.average, 3), "capped_requests": len(self._plan.caps)}

    def _capped(self, stats: HostStats, newest: StepPlan) -> StepPlan:
        requests, length = len(stats.requests), min(newest.draft_length, self._most)
        prices = newest.prices or self._assumed(requests)
        if not any(price.after < requests * length for price in prices):
            return self._uncapped  # nothing can cost too much, so the figures of single requests are not read
        rates, swept = self._acceptance.read(stats.requests)
        names = [request.request_id for request in stats.requests]
        before = np.array([self._plan.caps.get(name, length) for name in names])
        lengths = worthwhile_lengths(rates, length, prices)
        lengths = np.maximum(np.maximum(lengths, 1), np.where(swept, 2 * before, 0))
        caps = {name: cap for name, cap in zip(names, lengths.tolist(), strict=True) if cap < length}
        return self._plan if caps == self._plan.caps else StepPlan(self._most, caps=caps)

    def _assumed(self, requests: int) -> tuple[Price, ...]:
        """Return the price of tokens beyond those that are free."""
        saturation = self._options.saturation
        plain = min(1.0, requests / saturation)  # what plain decoding yields of a saturated step
        return (Price(max(plain, self._acceptance.yields), max(0, saturation - requests)),)
