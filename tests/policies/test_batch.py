"""The policy `batch`: its options and docs, draft lengths that can pay, and that it starts from a profile."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from specplug.errors import SettingsError
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry, default_registry
from specplug.plugins.specs import PolicySpec
from specplug.settings import load_settings
from specplug.settings.sources import CONFIG_VARIABLE
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.plan import HostStats, RequestStats
from specplug.types.step import StepCost
from specplug_batch import plugin
from specplug_batch.options import BatchOptions
from specplug_batch.plugin import build
from specplug_fixed.policy import FixedOptions

RAGGED, TREES = EngineCaps(64, ragged=Ragged.NATIVE), EngineCaps(64, ragged=Ragged.PADDED, trees=True)
PLENTY = 1 << 20


def spec() -> PolicySpec:
    registry = Registry()
    registry.add(plugin, Owner("batch", "specplug", "test"))
    return registry.get(PolicySpec, "batch")


def context(caps: EngineCaps, options: dict[str, object]) -> PluginContext:
    return PluginContext(caps, options=spec().options_model()(**options))  # type: ignore[misc]


def plan(count: int, caps: EngineCaps | None = None, **options: object):
    planner = spec().build(context(caps or RAGGED, options))
    assert isinstance(planner, Planner)
    requests = tuple(RequestStats(f"r{i}", length=10, room=100) for i in range(count))
    return planner.plan(HostStats(step=0, requests=requests))


class TestPlans:
    @pytest.mark.parametrize(
        ("batch_size", "draft_length"), [(1, 64), (8, 31), (9, 27), (64, 3), (100, 1), (129, 0), (999, 0)]
    )
    def test_where_trees_are_verified_only_free_tokens_are_drafted(self, batch_size, draft_length):
        assert plan(batch_size, TREES).draft_length == draft_length

    def test_it_is_fitted_to_what_the_engine_runs(self):
        captured = {"captured_draft_lengths": (0, 4, 12, 24), "draft_length_change": DraftLengthChange.CAPTURED}
        ladder = EngineCaps(24, ragged=Ragged.PADDED, trees=True, **captured)
        assert [plan(n, ladder).draft_length for n in (1, 9, 40)] == [24, 24, 4]
        assert plan(1, EngineCaps(5)).draft_length == 5

    def test_options(self):
        assert plan(300, TREES, saturation=1000).draft_length == 2
        assert (plan(1).token_budget, plan(1, token_budget=5).token_budget) == (None, 5)

    @pytest.mark.parametrize("wrong", [{"saturation": 0}, {"overhead": 0.02}, {"gama": 3}])
    def test_options_are_checked(self, wrong):
        with pytest.raises(ValidationError, match="|".join(wrong)):
            BatchOptions(**wrong)


@pytest.mark.parametrize(
    ("policy", "name"), [("batch", "overhead"), ("batch", "margin"), ("adaptive", "read_every")], ids=str
)
def test_a_removed_setting_is_refused_with_its_place_and_the_reason(tmp_path, policy, name):
    path = tmp_path / "specplug.json"
    path.write_text(json.dumps({"options": {policy: {name: 1, "saturation": 300}}}))
    flags = {"options": {policy: {"saturation": 400}}}
    with pytest.raises(SettingsError) as refused:
        load_settings(flags, env={CONFIG_VARIABLE: str(path)}, registry=default_registry())
    expected = f"{CONFIG_VARIABLE} ({path}): setting 'options.{policy}.{name}' was removed, as "
    assert str(refused.value).startswith(expected)
    assert str(refused.value).endswith("; found 1. Leave it out")


DOCS = Path(__file__).parents[2] / "docs" / "policies.md"


@pytest.mark.parametrize("policy", ["batch", "fixed"])
def test_every_option_is_documented_with_its_default_and_no_other(policy):
    section = DOCS.read_text(encoding="utf-8").split(f"\n## `{policy}`")[1].split("\n## ")[0]
    found = {name: json.loads(default) for name, default in re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.M)}
    model = BatchOptions if policy == "batch" else FixedOptions
    assert found == model().model_dump()


def test_the_example_settings_are_valid():
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    resolved = load_settings(tomllib.loads(text), env={})
    assert resolved.settings.policy == "adaptive+batch"
    BatchOptions(**resolved.settings.options["batch"])


SIZES = (1, 8, 64, 256, 1024, 4096)


def profiled(profile, ragged=Ragged.NATIVE, **caps):
    """Return the plan half for an engine, started from a profile by tokens."""
    built = build(PluginContext(EngineCaps(15, ragged=ragged, **caps), options=BatchOptions(saturation=256)))
    built.calibrate([StepCost(min(size, 256), size, 0, 0, profile(size)) for size in SIZES])
    return built


def planned(built, requests=64, step=0):
    return built.plan(HostStats(step, range(requests)))


def steep(tokens):
    return 1e-3 * (1 + tokens)


def level(tokens):
    return 5e-3


@pytest.mark.parametrize("cuts", [False, True], ids=["ragged", "cut on the device"])
def test_costs_follow_the_profile(cuts):
    flat = planned(profiled(level, verifies_budget=cuts)).costs
    assert max(abs(point.cost) for point in flat) < 0.5
    found = dict(planned(profiled(steep, verifies_budget=cuts)).costs)
    assert found[15 * 64] == pytest.approx(15 * 64 * 64 / 65, rel=0.05)  # what plain decoding yields in the time


def test_the_draft_length_follows_the_profile():
    assert planned(profiled(level, Ragged.PADDED)).draft_length > 0
    assert planned(profiled(steep, Ragged.PADDED)).draft_length == 0


@pytest.mark.parametrize("ragged", [Ragged.NATIVE, Ragged.PADDED])
def test_the_status_says_what_the_costs_rest_on(ragged):
    built = profiled(level, ragged)
    planned(built)
    assert built.status()["basis"] == "measured at start"
