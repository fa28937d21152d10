"""Two data-parallel engines of a dense model draft for themselves; ranks that step together share one draft length."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.types.caps import DraftLengthChange
from specplug.types.step import StepPlan
from specplug_vllm import seams
from specplug_vllm.config import engine_caps
from specplug_vllm.requests import DraftRules
from specplug_vllm.scheduler.row_lengths import RowLengths
from specplug_vllm.scheduler.scheduler import PlanningMixin
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.server import Server
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
    own = engine_caps(launch())
    engines = engine_caps(launch("mtp"))
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


class Asking(PlanningMixin, Scheduled):
    """The schedulers' own logic, with plans that are stated."""

    def __init__(self, config, plan, asks):
        caps = engine_caps(config)
        self.step_planner = SimpleNamespace(
            caps=caps,
            plan=plan,
            reads_costs=False,
            forget=lambda names: None,
            make=lambda *_: plan,
        )
        self.running = []
        self.counts = object()
        self._asks_ranks = asks
        self._lengths = RowLengths(config, caps, DraftRules(config))


@pytest.mark.parametrize("length", [0, 3, LONGEST])
def test_a_plan_without_drafts_asks_the_other_ranks_to_skip_them(agrees, length):
    scheduler = Asking(launch("mtp"), StepPlan(length), agrees)
    output = SimpleNamespace(
        num_scheduled_tokens={}, finished_req_ids=(), scheduled_new_reqs=(), num_spec_tokens_to_schedule=None
    )
    scheduler._update_after_schedule(output)
    skips = agrees and not length
    assert getattr(output, "skip_drafts", False) == skips
    assert output.num_spec_tokens_to_schedule == LONGEST, "what this rank drafts if another one does"
    assert scheduler.expected == (0 if skips else LONGEST), "what its next step verifies at most"


@pytest.mark.parametrize(("length", "expected"), [(0, 0), (3, LONGEST), (LONGEST, LONGEST)])
def test_specplugs_proposers_draft_as_far_as_the_other_ranks_or_not_at_all(length, expected):
    lengths = RowLengths(launch(), engine_caps(launch()), DraftRules(launch()))
    lengths.follow(StepPlan(length), running=[])
    assert lengths.length == expected


# -- servers -----------------------------------------------------------------------------------------------------------

GIVEN = prompts()[:8]
LENGTH = 24


@pytest.mark.slow  # two engines and a server, each with a process of its own
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_both_ranks_draft_and_the_text_is_right(runner, serve: Callable[..., Server]):
    settings = {"proposer": "ngram", "policy": "fixed"}
    server = serve(runner, settings, data_parallel_size=2, endpoints=True, name=f"two data-parallel ranks {runner}")
    client = server.client()

    def answer(prompt: tuple[int, ...]) -> dict[str, Any]:
        found = client.completions.create(
            model=server.model,
            prompt=list(prompt),
            temperature=0.0,
            max_tokens=LENGTH,
            extra_body={"return_token_ids": True},
        )
        (choice,) = found.choices
        stop = greedy(prompt, LENGTH)["stop_reason"] if choice.finish_reason == "stop" else None
        return {"token_ids": choice.token_ids, "finish_reason": choice.finish_reason, "stop_reason": stop}

    with ThreadPoolExecutor(len(GIVEN)) as threads:
        answers = list(threads.map(answer, GIVEN))
    assert_greedy(GIVEN, [greedy(prompt, LENGTH) for prompt in GIVEN], answers)
    engines = json.loads(server.get("/specplug/status"))["engines"]
    assert len(engines) == 2
    assert all(engine["runner"] == runner for engine in engines)
    assert all(engine["workers"][0]["metrics"]["total"]["accepted"] > 20 for engine in engines)
