from __future__ import annotations

import pytest
from pydantic import ValidationError

from specplug.errors import SettingsError
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import DraftLengthChange, EngineCaps
from specplug.types.plan import HostStats, RequestStats
from specplug.types.step import StepPlan
from specplug_fixed import plugin
from specplug_fixed.policy import FixedOptions


def planner(name: str, caps: EngineCaps, **options: object) -> Planner:
    registry = Registry()
    registry.add(plugin, Owner("fixed", "specplug", "test"))
    spec = registry.get(PolicySpec, name)
    model = spec.options_model()
    built = spec.build(PluginContext(caps, options=None if model is None else model(**options)))
    assert isinstance(built, Planner)
    return built


LADDER = {"captured_draft_lengths": (0, 1, 2, 4, 8)}
CAPTURED, FIXED = DraftLengthChange.CAPTURED, DraftLengthChange.FIXED


@pytest.mark.parametrize(
    ("name", "caps", "options", "expected"),
    [
        ("fixed", {}, {}, (8, None)),
        ("fixed", {}, {"gamma": 3, "token_budget": 40}, (3, 40)),
        ("fixed", {**LADDER, "draft_length_change": CAPTURED}, {"gamma": 6}, (4, None)),
        ("fixed", {**LADDER, "draft_length_change": FIXED}, {"gamma": 6}, (6, None)),
        ("none", {}, {}, (0, None)),
    ],
)
def test_the_plan_is_what_the_options_and_the_engine_say(name, caps, options, expected) -> None:
    requests = tuple(RequestStats(f"r{cap}", length=10, room=100, cap=cap) for cap in (None, 3))
    plan = planner(name, EngineCaps(8, **caps), **options).plan(HostStats(step=0, requests=requests))
    assert plan == StepPlan(*expected)


def test_gamma_beyond_the_server_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"policy 'fixed': .*found 9; expected at most num_speculative_tokens, 8"):
        planner("fixed", EngineCaps(8), gamma=9)


@pytest.mark.parametrize("wrong", [{"gamma": -1}, {"token_budget": -1}, {"gama": 3}])
def test_options_are_checked(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="|".join(wrong)):
        FixedOptions(**wrong)


@pytest.mark.parametrize("name", ["fixed", "none"])
def test_trim_half_is_survival(name: str) -> None:
    registry = Registry()
    registry.add(plugin, Owner("fixed", "specplug", "test"))
    context = PluginContext(EngineCaps(8))
    assert isinstance(registry.get(PolicySpec, name).build_trimmer(context), SurvivalTrimmer)
