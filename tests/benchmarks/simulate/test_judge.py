"""The judge: the field, the ceiling, capacity and the report."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.arrivals import TrafficSpec
from benchmarks.simulate.clairvoyant import Clairvoyant
from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.disturbance import NO_DISTURBANCE
from benchmarks.simulate.engine import Limits
from benchmarks.simulate.judge import Case, assess, capacity, ceiling, field_of, judge, runs_of, simulate
from benchmarks.simulate.modes import modes
from benchmarks.simulate.report import RATIOS, Report
from benchmarks.simulate.surfaces import surface_named
from tests.benchmarks.simulate.tools import SURFACE, random_trajectories

ROOT = Path(__file__).parents[3]


def case(mode: str = "ragged", traffic: str = "steady:8", **given) -> Case:
    limits = Limits(cached_share=1.0)
    return Case(SURFACE, modes(8)[mode], TrafficSpec.parse(traffic), 60, limits=limits, **given)


@given(st.integers(0, 1000), st.sampled_from(["padded", "ragged", "cut"]), st.sampled_from([1, 8, 64]))
@settings(max_examples=10)
def test_no_constant_length_beats_the_ceiling(seed, mode, concurrency):
    trajectories = random_trajectories(seed, requests=60)
    server = case(mode, f"steady:{concurrency}", disturbance=NO_DISTURBANCE)
    constants = [assess(server, policy, trajectories) for policy in field_of(server.mode, ())]
    best = ceiling(server, trajectories, constants).goodput
    assert all(best >= outcome.goodput for outcome in constants)


@pytest.mark.parametrize("mode", ["ragged", "cut"])
def test_where_drafts_can_be_cut_the_clairvoyant_alone_beats_constant_lengths_and_wastes_nothing(mode):
    trajectories = random_trajectories(7, requests=60)
    server = case(mode, disturbance=NO_DISTURBANCE)
    found = simulate(server, Clairvoyant(SURFACE, server.mode, trajectories), trajectories)
    assert found.rejected_share == 0.0
    assert all(found.goodput > assess(server, policy, trajectories).goodput for policy in field_of(server.mode, ()))


def test_the_field_has_none_constant_lengths_and_the_peers_of_the_mode():
    labels = [policy.label for policy in field_of(modes(15)["padded"])]
    assert labels == ["none", "fixed 1", "fixed 3", "fixed 7", "fixed 15", "table", "tiers", "nightjar"]
    assert {"survival", "gate"} <= {policy.label for policy in field_of(modes(15)["cut"])}


def test_capacity_is_about_what_plain_decoding_completes():
    trajectories = random_trajectories(3, requests=200)
    server = Case(SURFACE, modes(8)["ragged"], TrafficSpec("steady", 64), 400, disturbance=NO_DISTURBANCE)
    found = assess(server, Policy("none", "none"), trajectories)
    rate = server.requests / found.steps.ended[-1]
    assert capacity(SURFACE, trajectories, server.limits) == pytest.approx(rate, rel=0.25)


def test_a_report_compares_each_policy_and_says_simulated():
    trajectories = random_trajectories(requests=60)
    cases, calls = [case("padded"), case("padded", "bursty:0.8"), case("cut")], []
    verdicts = judge(cases, [Policy("batch", "batch")], trajectories, progress=lambda: calls.append(1))
    assert len(calls) == runs_of(cases, 1)
    report = Report(verdicts, ["batch"])
    tables = list(report.tables())
    assert all(table.title.startswith("Simulated: ") for table in tables)
    assert len(tables) == 3 * 2 + 1
    data = json.loads(json.dumps(report.as_dict()))
    assert data["simulated"] is True
    assert data["faults"] == {}
    first = data["comparisons"][0]
    runs = {run["policy"]: run for run in data["runs"] if (run["mode"], run["traffic"]) == ("padded", "steady:8")}
    assert first["to_none"] == pytest.approx(runs["batch"]["goodput"] / runs["none"]["goodput"])
    best = max(run["goodput"] for name, run in runs.items() if name.startswith("fixed"))
    assert first["to_best_fixed"] == pytest.approx(runs["batch"]["goodput"] / best)
    assert {*RATIOS} <= {*first}


def test_without_peers_there_is_nothing_to_compare_with_them():
    verdicts = judge([case()], [Policy("batch", "batch")], random_trajectories(requests=60), peers=())
    report = Report(verdicts, ["batch"])
    assert next(report.comparisons())["to_best_peer"] is None
    assert list(report.tables())[-1].rows[0][6] == ""


def test_the_same_seed_gives_the_same_verdicts():
    trajectories, server = random_trajectories(requests=60), case("cut", "bursty:0.8")
    one, other = (assess(server, Policy("n", "nightjar", peer="nightjar"), trajectories).figures() for _ in range(2))
    assert one == other


def test_import_linter_keeps_the_judge_apart_from_cost_models_and_policies():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if "judge" in each["name"]]
    assert contract["source_modules"] == ["benchmarks.simulate"]
    policies = {path.name for path in (ROOT / "policies").iterdir() if path.name.startswith("specplug_")}
    exists = {"specplug.cost"} if (ROOT / "specplug" / "cost").exists() else set()
    assert {*contract["forbidden_modules"]} == policies | exists


def test_long_contexts_slow_every_step_down():
    trajectories = random_trajectories(requests=60)
    short, long = (
        assess(
            Case(
                surface_named("h200-8b"), modes(8)["ragged"], TrafficSpec("steady", 8), 60, limits=Limits(8192, 1.0, n)
            ),
            Policy("none", "none"),
            trajectories,
        )
        for n in (0, 100_000)
    )
    assert long.goodput < 0.7 * short.goodput
