"""Where drafts are verified a step later, a server gains by a costly drafter what its status predicts."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.interfaces import PluginContext
from specplug.operator.server_planner import ServerPlanner
from specplug.settings import load_settings
from specplug.settings.sources import ResolvedSettings
from specplug.steps.step_planner import Bounds
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.step import StepCost, StepPlan

REQUESTS, LONGEST = ("a", "b", "c", "d"), 15
PLAIN, PER_TOKEN = 6e-3, 2e-4  # seconds of a step without drafts, and of each draft token that it verifies
ACCEPTED = 0.9
PADDED = EngineCaps(LONGEST, ragged=Ragged.PADDED, draft_length_change=DraftLengthChange.FREE)


def padded_planner() -> ServerPlanner[str]:
    settings = load_settings({"policy": "batch", "num_speculative_tokens": LONGEST}, env={}).settings
    found = ResolvedSettings(settings=settings, origins={})
    return ServerPlanner(
        found, PluginContext(PADDED, max_slots=8), str, lambda name: 100, lambda name: Bounds(1000, None)
    )


def rate_of(planner: ServerPlanner[str], steps: int, per_draft: float) -> float:
    """Return the tokens per second of the last half of the steps, relative to no speculation.

    A step verifies the drafts of the plan before, and then drafts for the newest plan, which takes `per_draft` a token.
    """
    random, before, clock = np.random.default_rng(0), StepPlan(0), 0.0
    tokens = seconds = 0.0
    for step in range(steps):
        plan = planner.make(REQUESTS)
        verified = [before.draft_length] * len(REQUESTS)
        took = PLAIN + per_draft * plan.draft_length + PER_TOKEN * sum(verified)
        took *= float(np.exp(0.05 * random.standard_normal()))
        accepted = [int(np.argmin([*(random.random(count) < ACCEPTED), False])) for count in verified]
        if planner.is_off:
            planner.finish(planner.launch(clock, StepCost(0, 0, 0, 0, 0.0)), (), clock + took)
        else:
            count = len(REQUESTS) + sum(verified)
            launched = planner.launch(clock, StepCost(len(REQUESTS), count, 400, before.draft_length, 0.0))
            results = list(zip(REQUESTS, verified, accepted, strict=True)) if before.draft_length else []
            planner.finish(launched, results, clock + took)
        clock, before = clock + took, plan
        if step >= steps // 2:
            tokens, seconds = tokens + len(REQUESTS) + sum(accepted), seconds + took
    return tokens / seconds * PLAIN / len(REQUESTS)


@pytest.mark.parametrize("per_draft", [1e-3, 4e-3])
def test_what_is_predicted_is_what_it_gains(per_draft):
    planner = padded_planner()
    rate = rate_of(planner, 3000, per_draft)
    status = planner.stage.status()
    assert rate > 1.02
    assert status["speed_up"] == pytest.approx(rate, rel=0.1)
