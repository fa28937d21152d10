"""Where drafts are verified a step later, a drafter that takes long is switched off if it does not pay."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.interfaces import PluginContext
from specplug.operator.server_planner import ServerPlanner
from specplug.settings import load_settings
from specplug.settings.sources import ResolvedSettings
from specplug.steps.step_planner import Bounds
from specplug.steps.trim import best_count
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.step import StepCost, StepPlan

REQUESTS, LONGEST = ("a", "b", "c", "d"), 15
PLAIN, PER_TOKEN = 6e-3, 2e-4  # seconds of a step without drafts, and of each draft token that it verifies
ACCEPTED = 0.9
RAGGED = EngineCaps(LONGEST)
PADDED = EngineCaps(LONGEST, ragged=Ragged.PADDED, draft_length_change=DraftLengthChange.FREE)


def planner_of(caps: EngineCaps) -> ServerPlanner[str]:
    settings = load_settings({"policy": "batch", "num_speculative_tokens": LONGEST}, env={}).settings
    found = ResolvedSettings(settings=settings, origins={})
    return ServerPlanner(
        found, PluginContext(caps, max_slots=8), str, lambda name: 100, lambda name: Bounds(1000, None)
    )


def verified_of(plan: StepPlan) -> list[int]:
    """Return how many draft tokens of each request are verified."""
    survival = np.tile(ACCEPTED ** np.arange(1, plan.draft_length + 1), len(REQUESTS))
    count = best_count(survival, plan.costs, plan.budget_of(survival.size))
    return [(count + len(REQUESTS) - 1 - row) // len(REQUESTS) for row in range(len(REQUESTS))]


def rate_of(planner: ServerPlanner[str], steps: int, per_draft: float, *, pads: bool) -> float:
    """Return the tokens per second of the last half of the steps, relative to no speculation.

    A step verifies the drafts of the plan before, and then drafts for the newest plan, which takes `per_draft` a token.
    """
    random, before, clock = np.random.default_rng(0), StepPlan(0), 0.0
    tokens = seconds = 0.0
    for step in range(steps):
        plan = planner.make(REQUESTS)
        verified = [before.draft_length] * len(REQUESTS) if pads else verified_of(before)
        took = PLAIN + per_draft * plan.draft_length + PER_TOKEN * sum(verified)
        took *= float(np.exp(0.05 * random.standard_normal()))
        accepted = [int(np.argmin([*(random.random(count) < ACCEPTED), False])) for count in verified]
        if planner.is_off:
            planner.finish(planner.launch(clock, StepCost(0, 0, 0, 0, 0.0)), (), clock + took)
        else:
            count = len(REQUESTS) + sum(verified)
            launched = planner.launch(clock, StepCost(len(REQUESTS), count, 400, before.draft_length, 0.0))
            fates = list(zip(REQUESTS, verified, accepted, strict=True)) if before.draft_length else []
            planner.finish(launched, fates, clock + took)
        clock, before = clock + took, plan
        if step >= steps // 2:
            tokens, seconds = tokens + len(REQUESTS) + sum(accepted), seconds + took
    return tokens / seconds * PLAIN / len(REQUESTS)


@pytest.mark.parametrize(("steps", "per_draft", "least"), [(3000, 1e-2, 0.98), (1500, 1e-4, 1.5)])
def test_one_that_loses_is_switched_off_and_one_that_gains_stays_on(steps, per_draft, least):
    """At 10 ms a token, a step with 15 draft tokens takes 27 times as long as one without, and probes are rare."""
    assert rate_of(planner_of(RAGGED), steps, per_draft, pads=False) > least


@pytest.mark.parametrize("per_draft", [1e-3, 4e-3])
def test_what_is_predicted_is_what_it_gains(per_draft):
    planner = planner_of(PADDED)
    rate = rate_of(planner, 3000, per_draft, pads=True)
    status = planner.stage.status()
    assert rate > 1.02
    assert status["speed_up"] == pytest.approx(rate, rel=0.1)
