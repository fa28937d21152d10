"""The benchmark of the policy `batch` on cost curves: its curves, ratios, ablations and errors, on random drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.batch_policy import ABLATIONS, COSTS, Curve, ablated, case_of, compared, cost_errors, without
from benchmarks.simulate.modes import modes
from benchmarks.simulate.surface import StepWork
from specplug_batch.gate import Probes
from tests.benchmarks.simulate.tools import random_trajectories

CUT, PADDED = modes(8)["cut"], modes(8)["padded"]


def case(mode=CUT, curve="smooth", requests=60):
    return replace(case_of(curve, mode, "steady:8", 0), requests=requests)


@pytest.mark.parametrize("name", list(COSTS))
def test_more_tokens_never_cost_less(name):
    seconds = [Curve(name).seconds(StepWork(1, tokens, 0)) for tokens in range(1, 2000)]
    assert (np.diff(seconds) >= 0).all()
    assert seconds[-1] > 2 * seconds[0]


@pytest.mark.parametrize("mode", [CUT, PADDED])
def test_ratios_are_to_no_drafts_the_best_constant_length_and_the_peer(mode, monkeypatch):
    monkeypatch.setattr("benchmarks.batch_policy.LENGTHS", (1, 3, 8))
    row = compared(case(mode), random_trajectories())
    assert row["none"] == 1.0
    assert row["best_fixed"] in ("none", "fixed 1", "fixed 3", "fixed 8")
    best = max(row[name] for name in ("none", "fixed 1", "fixed 3", "fixed 8"))
    assert row["to_best_fixed"] == pytest.approx(row["batch"] / best)
    if mode is CUT:
        assert row["to_survival"] == pytest.approx(row["batch"] / row["survival"])


def test_an_ablation_ends_with_its_run():
    assert Probes().is_due(4)
    with without("exploration"):
        assert not Probes().is_due(4)
    assert Probes().is_due(4)


def test_every_ablation_is_told():
    row = ablated(case(), random_trajectories())
    assert [name for name in row if name.startswith("without")] == [f"without {name}" for name in ABLATIONS][1:]
    assert all(row[f"without {name}"] > 0.2 for name in ABLATIONS if name != "nothing")


def test_errors_are_of_steps_that_were_not_learnt_from():
    errors = cost_errors(case(requests=1000), random_trajectories())
    assert errors["steps"] > 20
    assert errors["median_error_later"] < 0.1
