"""Policies in the simulation: they run through the engines' classes, and see nothing that an engine would not show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.simulate.deciding import Policy
from benchmarks.simulate.modes import modes
from specplug.errors import PluginError, SettingsError
from specplug.steps import step_planner
from specplug.steps.step_planner import REPORT_EVERY
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.step import StepPlan
from tests.benchmarks.simulate.tools import Planted, planted, random_trajectories, run
from tests.steps.trim_tools import each_costs


class Watching(SurvivalTrimmer):
    """Keeps what it was handed."""

    def __init__(self):
        self.drafts, self.verdicts = [], []

    def cuts_without_budget(self, batch_size, draft_length):
        return True

    def trim(self, draft, limits):
        self.drafts.append(draft)
        return super().trim(draft, limits)

    def observe(self, batch, draft, verdict):
        self.verdicts.append((batch, draft, verdict))


def watched(plan, mode="ragged", **given):
    trimmer = Watching()
    with planted(Planted(plan), lambda context: trimmer) as policy:
        return run(random_trajectories(), policy, replace(modes(8)[mode], lag=0), **given), trimmer


def test_a_policy_sees_drafts_with_confidences_and_no_ids():
    _, trimmer = watched(lambda stats: StepPlan(8))
    assert trimmer.drafts
    for draft in trimmer.drafts:
        assert torch.equal(draft.token_ids == 0, draft.mask())
        assert torch.equal(draft.token_ids == -1, ~draft.mask())
        assert torch.all((draft.confidence > 0) == draft.mask())
        assert draft.sources == ("own text",)
        draft.validate()


def test_no_figure_reveals_an_outputs_end():
    rooms = []

    def plan(stats):
        rooms.extend(request.room for request in stats.requests)
        return StepPlan(2)

    trajectories = random_trajectories()
    with planted(Planted(plan)) as policy:
        run(trajectories, policy)
    assert min(rooms) > 10_000


def test_verdicts_reach_a_trim_half_that_learns():
    found, trimmer = watched(lambda stats: StepPlan(5))
    decoding = found.steps.rows > 0
    for name in ("accepted", "verified", "emitted"):
        counts = [int(getattr(verdict, name).sum()) for *_, verdict in trimmer.verdicts]
        assert counts == getattr(found.steps, name)[decoding].tolist()
    batch, draft, verdict = trimmer.verdicts[-1]
    assert torch.equal(batch.lengths - draft.base_len, verdict.emitted)


@pytest.mark.parametrize("half", ["plan", "trim"])
def test_faults_are_counted_and_cost_drafts_only(half):
    def fail(*_):
        raise RuntimeError("planted")

    class Failing(SurvivalTrimmer):
        trim = fail

    trajectories = random_trajectories()
    planner = Planted(fail if half == "plan" else lambda stats: StepPlan(4, costs=each_costs(0.01)))
    with planted(planner, lambda context: Failing()) as policy:
        found = run(trajectories, policy)
    assert found.faults["raised"] > 0
    assert found.outputs.tolist() == trajectories.outputs.tolist()
    assert found.steps.accepted.sum() == 0


def test_where_rows_are_padded_reports_count_the_padding():
    planner = Planted(lambda stats: StepPlan(3))
    with planted(planner) as policy:
        found = run(random_trajectories(), policy, replace(modes(8)["padded"], lag=0)).steps
    assert [report.verified for report in planner.reports] == (found.rows * 3).tolist()


@pytest.mark.parametrize("length", [0, 3])
def test_where_rows_are_padded_reports_say_what_drafts_of_all_lengths_were_expected_to_yield(length):
    planner, trajectories = Planted(lambda stats: StepPlan(length)), random_trajectories()
    with planted(planner) as policy:
        found = run(trajectories, policy, replace(modes(8)["padded"], lag=0)).steps
    is_due = (found.rows > 0) & ((length > 0) | (np.arange(found.rows.size) % REPORT_EVERY == 0))
    decoding = [report for report in planner.reports if report.expected is not None]
    assert [report.expected_rows for report in decoding] == found.rows[is_due].tolist()
    assert all(len(report.expected) == 8 for report in decoding)


def test_where_nothing_is_planned_each_position_of_each_output_is_reported_once(monkeypatch):
    monkeypatch.setattr(step_planner, "REPORT_EVERY", 1)
    planner, trajectories = Planted(lambda stats: StepPlan(0)), random_trajectories()
    with planted(planner) as policy:
        run(trajectories, policy, replace(modes(8)["padded"], lag=0))
    total = sum(report.expected[1] for report in planner.reports if report.expected is not None)
    assert total == pytest.approx(trajectories.confidence[:, :2].prod(axis=1).sum(), rel=1e-4)


def test_unknown_policies_and_options_are_errors():
    with pytest.raises((PluginError, SettingsError), match="adaptve"):
        run(random_trajectories(), Policy("a", "adaptve"))
    with pytest.raises(SettingsError, match="gama"):
        run(random_trajectories(), Policy("a", "none+fixed", {"fixed": {"gama": 3}}))
