"""The policy `batch` starts from what the engine profiled, until it has measured."""

from __future__ import annotations

import pytest

from specplug.interfaces import PluginContext
from specplug.types.caps import EngineCaps, Ragged
from specplug.types.plan import HostStats, StepCost, StepReport
from specplug_batch.options import BatchOptions
from specplug_batch.policy import build

SIZES = (1, 8, 64, 256, 1024, 4096)


def planner(profile, ragged=Ragged.NATIVE, **caps):
    """Return the plan half for an engine, started from a profile by tokens."""
    built = build(PluginContext(EngineCaps(15, ragged=ragged, **caps), options=BatchOptions(saturation=256)))
    built.calibrate([StepCost(min(size, 256), size, 0, 0, profile(size)) for size in SIZES])
    return built


def plan(built, requests=64, step=0):
    return built.plan(HostStats(step, range(requests)))


def steep(tokens):
    return 1e-3 * (1 + tokens)


def level(tokens):
    return 5e-3


@pytest.mark.parametrize("cuts", [False, True], ids=["ragged", "cut on the device"])
def test_prices_follow_the_profile(cuts):
    assert plan(planner(level, verifies_budget=cuts)).prices == ()
    found = plan(planner(steep, verifies_budget=cuts)).prices
    assert found[0].after == 0
    assert found[0].survival == pytest.approx(64 / 65, rel=0.02)  # what plain decoding yields in the time of a token


def test_the_draft_length_follows_the_profile():
    assert plan(planner(level, Ragged.PADDED)).draft_length > 0
    assert plan(planner(steep, Ragged.PADDED)).draft_length == 0


@pytest.mark.parametrize("ragged", [Ragged.NATIVE, Ragged.PADDED])
def test_the_status_says_what_the_costs_rest_on(ragged):
    built = planner(level, ragged)
    plan(built)
    assert built.status()["costs"] == "profiled by the engine at start-up"
    built.observe(StepReport.build(0, 3, 8, [(3, 1)] * 8, StepCost(8, 32, 0, 3, 0.01)))
    assert built.status()["costs"] == "measured"
