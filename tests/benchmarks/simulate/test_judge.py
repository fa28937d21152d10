"""The judge: the field, the ceiling and the report."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.clairvoyant import Clairvoyant
from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.engine import Limits
from benchmarks.simulate.judge import RATIOS, Case, assess, ceiling, field_of, judge, report, shown, simulate
from benchmarks.simulate.modes import modes
from benchmarks.simulate.traffic import NO_DISTURBANCE
from tests.benchmarks.simulate.tools import SURFACE, random_trajectories

ROOT = Path(__file__).parents[3]


def case(mode: str = "ragged", traffic: str = "steady:8", **given) -> Case:
    return Case(SURFACE, modes(8)[mode], traffic, 60, limits=Limits(cached_share=1.0), **given)


@given(st.integers(0, 1000), st.sampled_from(["padded", "ragged", "cut"]), st.sampled_from([1, 8, 64]))
@settings(max_examples=5)
def test_no_constant_length_beats_the_ceiling(seed, mode, concurrency):
    trajectories = random_trajectories(seed, requests=60)
    server = case(mode, f"steady:{concurrency}", disturbance=NO_DISTURBANCE)
    constants = [assess(server, policy, trajectories) for policy in field_of(server.mode, peers=False)]
    best = ceiling(server, trajectories, constants).goodput
    assert all(best >= outcome.goodput for outcome in constants)


@pytest.mark.parametrize("mode", ["ragged", "cut"])
def test_where_drafts_can_be_cut_the_clairvoyant_alone_beats_constant_lengths_and_wastes_nothing(mode):
    trajectories = random_trajectories(7, requests=60)
    server = case(mode, disturbance=NO_DISTURBANCE)
    found = simulate(server, Clairvoyant(SURFACE, server.mode, trajectories), trajectories)
    assert found.figures()["rejected_share"] == 0.0
    assert all(
        found.goodput > assess(server, policy, trajectories).goodput for policy in field_of(server.mode, peers=False)
    )


def test_the_field_has_none_constant_lengths_and_the_peers_of_the_mode():
    labels = [policy.label for policy in field_of(modes(15)["padded"])]
    assert labels == ["none", "fixed 1", "fixed 3", "fixed 7", "fixed 15", "table", "tiers"]
    assert {"survival", "gate"} <= {policy.label for policy in field_of(modes(15)["cut"])}


def test_a_report_compares_each_policy_and_says_simulated():
    trajectories = random_trajectories(requests=60)
    cases, calls = [case("padded"), case("padded", "ramp"), case("cut")], []
    judged = judge(cases, [Policy("batch", "batch")], trajectories, progress=calls.append)
    data = json.loads(json.dumps(report(judged, ["batch"])))
    assert data["simulated"] is True
    assert data["faults"] == {}
    assert len(calls) == len({*calls}) == len(data["runs"]) == 9 + 9 + 11
    first = data["comparisons"][0]
    runs = {run["policy"]: run for run in data["runs"] if (run["mode"], run["traffic"]) == ("padded", "steady:8")}
    assert first["to_none"] == pytest.approx(runs["batch"]["goodput"] / runs["none"]["goodput"])
    best = max(run["goodput"] for name, run in runs.items() if name.startswith("fixed"))
    assert first["to_best_fixed"] == pytest.approx(runs["batch"]["goodput"] / best)
    assert {*RATIOS} <= {*first}
    assert len(shown(data["comparisons"]).splitlines()) == 2 + 3
    (row,) = report(judge([case()], [Policy("batch", "batch")], trajectories, peers=False), ["batch"])["comparisons"]
    assert row["to_best_peer"] is None
    assert "|  |" in shown([row])


def test_the_goodput_of_rollouts_is_over_all_their_time():
    trajectories = random_trajectories(requests=60)
    found = assess(case(traffic="rollouts:8"), Policy("none", "none"), trajectories)
    assert found.goodput == pytest.approx((trajectories.outputs - 1).sum() / found.figures()["seconds"])


def test_import_linter_keeps_the_judge_apart_from_cost_models_and_policies():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if "judge" in each["name"]]
    assert contract["source_modules"] == ["benchmarks.simulate"]
    policies = {path.name for path in (ROOT / "policies").iterdir() if path.name.startswith("specplug_")}
    exists = {"specplug.cost"} if (ROOT / "specplug" / "cost").exists() else set()
    assert {*contract["forbidden_modules"]} == policies | exists
