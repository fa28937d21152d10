"""Draft lengths where data-parallel ranks run every step together, as those of a mixture of experts do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specplug.types.caps import DraftLengthChange
from specplug.types.plan import StepPlan
from specplug_vllm import seams
from specplug_vllm.config import engine_caps
from specplug_vllm.scheduler.planned import PlanningMixin
from specplug_vllm.scheduler.scheduler import _EngineDrafts
from tests.engines.vllm.graphs import vllm_config

LONGEST = 7


def launch(method="custom_class", **given):
    section = {} if method == "custom_class" else {"specplug": {}}
    given = {"data_parallel": 2, "experts": True, **given}
    return vllm_config(LONGEST, 64, method=method, additional_config=section, **given)


@pytest.fixture(params=[False, True], ids=["0.32", "0.33"])
def agrees(request, monkeypatch):
    """Whether vLLM's ranks agree to skip drafts."""
    monkeypatch.setattr(seams, "ranks_agree_to_skip_drafts", lambda: request.param)
    return request.param


def test_the_draft_length_is_fixed_but_0_where_no_rank_waits_for_drafts(agrees):
    own, engines = engine_caps(launch()), engine_caps(launch("mtp"))
    assert own.draft_length_change is engines.draft_length_change is DraftLengthChange.FIXED
    assert own.captured_draft_lengths == (0, LONGEST)
    assert engines.captured_draft_lengths == ((0, LONGEST) if agrees else ())
    assert engine_caps(launch(v2=False)).captured_draft_lengths == ()


@pytest.mark.parametrize("given", [{"data_parallel": 1}, {"experts": False}], ids=str)
def test_ranks_that_run_on_their_own_choose_freely(agrees, given):
    assert engine_caps(launch(**given)).draft_length_change is DraftLengthChange.FREE


class Scheduled:
    """Stands for vLLM's scheduler: notes how many drafts the next step is to verify."""

    def _update_after_schedule(self, scheduler_output):
        self.expected = scheduler_output.num_spec_tokens_to_schedule


class Asking(_EngineDrafts, Scheduled):
    """The schedulers' own logic, with plans that are stated."""

    def __init__(self, caps, plan, asks):
        self.step_planner = SimpleNamespace(
            caps=caps,
            plan=plan,
            reads_costs=False,
            forget=lambda names: None,
            make=lambda *_: plan,
        )
        self.running, self.waiting, self._sized = [], [], None
        self._may_narrow, self._pads, self._takes_length, self._asks_ranks = False, False, True, asks


@pytest.mark.parametrize("length", [0, 3, LONGEST])
def test_a_plan_without_drafts_asks_the_other_ranks_to_skip_them(agrees, length):
    scheduler = Asking(engine_caps(launch("mtp")), StepPlan(length), agrees)
    output = SimpleNamespace(
        num_scheduled_tokens={}, finished_req_ids=(), scheduled_new_reqs=(), num_spec_tokens_to_schedule=None
    )
    scheduler._update_after_schedule(output)
    skips = agrees and not length
    assert getattr(output, "skip_drafts", False) == skips
    assert output.num_spec_tokens_to_schedule == LONGEST, "what this rank drafts if another one does"
    assert scheduler.expected == (0 if skips else LONGEST), "what its next step verifies at most"


def test_drafts_that_were_made_for_other_ranks_are_not_verified():
    scheduler = Asking(engine_caps(launch("mtp")), StepPlan(0), asks=True)
    scheduler._row_length = scheduler._length_for(StepPlan(0))
    request = SimpleNamespace(request_id="a", spec_token_ids=[5] * LONGEST)
    scheduler.running = [request]
    scheduler._cut_drafts(StepPlan(0))
    assert request.spec_token_ids == []


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (3, LONGEST), (LONGEST, LONGEST)])
def test_specplugs_proposers_draft_as_far_as_the_other_ranks_or_not_at_all(length, expected):
    scheduler = SimpleNamespace(_may_narrow=False, step_planner=SimpleNamespace(caps=engine_caps(launch())))
    assert PlanningMixin._length_for(scheduler, StepPlan(length)) == expected
