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


def stats(*caps: int | None) -> HostStats:
    requests = tuple(RequestStats(f"r{i}", length=10, room=100, cap=cap) for i, cap in enumerate(caps))
    return HostStats(step=0, requests=requests)


def test_default_is_what_the_server_allows() -> None:
    plan = planner("fixed", EngineCaps(5)).plan(stats(None))
    assert (plan.draft_length, plan.token_budget, dict(plan.caps)) == (5, None, {})


def test_gamma_and_budget_are_options() -> None:
    plan = planner("fixed", EngineCaps(8), gamma=3, token_budget=40).plan(stats(None, None))
    assert (plan.draft_length, plan.token_budget) == (3, 40)


@pytest.mark.parametrize(("change", "expected"), [(DraftLengthChange.CAPTURED, 4), (DraftLengthChange.FIXED, 6)])
def test_gamma_is_fitted_to_captured_draft_lengths(change: DraftLengthChange, expected: int) -> None:
    caps = EngineCaps(8, captured_draft_lengths=(0, 1, 2, 4, 8), draft_length_change=change)
    assert planner("fixed", caps, gamma=6).plan(stats()).draft_length == expected


def test_gamma_beyond_the_server_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"policy 'fixed': .*found 9; expected at most num_speculative_tokens, 8"):
        planner("fixed", EngineCaps(8), gamma=9)


def test_none_never_speculates() -> None:
    plan = planner("none", EngineCaps(8)).plan(stats(None, 3))
    assert (plan.draft_length, dict(plan.caps)) == (0, {})


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
