"""The policy `batch`: draft lengths that can pay, and the draft tokens that do, held to a plain reference."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.settings import load_settings
from specplug.types.caps import DraftLengthChange, EngineCaps, Ragged
from specplug.types.plan import HostStats, RequestStats
from specplug_batch import plugin
from specplug_batch.options import BatchOptions
from specplug_batch.roofline import Roofline
from specplug_fixed.options import FixedOptions

PADDED = EngineCaps(64, ragged=Ragged.PADDED)
PLENTY = 1 << 20


def spec() -> PolicySpec:
    registry = Registry()
    registry.add(plugin, Owner("batch", "specplug", "test"))
    return registry.get(PolicySpec, "batch")


def context(caps: EngineCaps, options: dict[str, object]) -> PluginContext:
    return PluginContext(caps, options=spec().options_model()(**options))  # type: ignore[misc]


def plan(count: int, caps: EngineCaps | None = None, **options: object):
    planner = spec().build(context(caps or EngineCaps(64), options))
    assert isinstance(planner, Planner)
    requests = tuple(RequestStats(f"r{i}", length=10, room=100) for i in range(count))
    return planner.plan(HostStats(step=0, requests=requests))


class TestPlans:
    def test_without_free_tokens_an_engine_that_verifies_its_budget_drafts_nothing(self):
        caps = EngineCaps(64, verifies_budget=True)
        assert plan(255, caps).draft_length > 0
        assert plan(256, caps).draft_length == 0

    @pytest.mark.parametrize(
        ("batch_size", "draft_length"),
        [(0, 32), (1, 32), (8, 32), (9, 16), (128, 16), (250, 16), (256, 9), (300, 6), (512, 0)],
    )
    def test_the_draft_length_follows_the_batch_size(self, batch_size, draft_length):
        assert plan(batch_size).draft_length == draft_length

    @pytest.mark.parametrize(
        ("batch_size", "draft_length"), [(1, 32), (8, 31), (9, 16), (64, 3), (100, 1), (129, 0), (999, 0)]
    )
    def test_where_rows_are_padded_only_free_tokens_are_drafted(self, batch_size, draft_length):
        assert plan(batch_size, PADDED, gamma_small=32).draft_length == draft_length

    @pytest.mark.parametrize(("batch_size", "budget"), [(1, 255), (64, 192), (256, 0), (300, 0)])
    def test_where_only_the_budget_bounds_the_step_it_is_what_stays_free(self, batch_size, budget):
        cut = EngineCaps(8, ragged=Ragged.NATIVE, verifies_budget=True)
        assert plan(batch_size, cut).token_budget == budget
        assert plan(batch_size, cut, saturation=300).token_budget == 300 - min(batch_size, 300)
        assert plan(batch_size, cut, token_budget=500).token_budget == 500
        assert plan(batch_size, EngineCaps(8)).token_budget is None

    def test_it_is_fitted_to_what_the_engine_runs(self):
        ladder = EngineCaps(24, captured_draft_lengths=(0, 4, 12, 24), draft_length_change=DraftLengthChange.CAPTURED)
        assert [plan(n, ladder).draft_length for n in (1, 9, 256)] == [24, 12, 4]
        assert plan(1, EngineCaps(5)).draft_length == 5

    def test_options(self):
        assert plan(3, small_batch=2, gamma_small=9, gamma_large=7).draft_length == 7
        assert plan(2, small_batch=2, gamma_small=9, gamma_large=7).draft_length == 9
        assert plan(300, saturation=1000).draft_length == 16
        assert (plan(1).token_budget, plan(1, token_budget=5).token_budget) == (None, 5)

    @given(st.integers(1, 2000), st.integers(1, 600))
    @settings(max_examples=50, deadline=None)
    def test_no_draft_length_is_planned_whose_last_token_cannot_pay(self, batch_size, saturation):
        """A row's surest token of that place is free, or brings more than plain decoding does in its time."""
        draft_length = plan(batch_size, saturation=saturation).draft_length
        roofline = Roofline(saturation, 0.02)
        free = batch_size + draft_length <= saturation
        assert not draft_length or free or 0.999**draft_length > roofline.plain_rate(batch_size) / saturation

    @pytest.mark.parametrize("wrong", [{"gamma_small": -1}, {"saturation": 0}, {"margin": -0.1}, {"gama": 3}])
    def test_options_are_checked(self, wrong):
        with pytest.raises(ValidationError, match="|".join(wrong)):
            BatchOptions(**wrong)


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
    assert resolved.settings.policy == "batch"
    BatchOptions(**resolved.settings.options["batch"])
