"""V2's adaptive verification with specplug's confidences and the plan's token budget."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.errors import EngineError
from specplug.types.caps import Distribution, DraftLengthChange, Ragged
from specplug.types.step import StepCost, StepPlan
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.suites.features import assert_same
from tests.engines.vllm import graphs, inside, steps
from tests.engines.vllm.steps import assert_greedy_texts, requests

BUDGET = 5
DRAFT_LENGTH = 6


def launch(engine, budget=None, policy="fixed", draft_ranks="first", **given):
    """Make an engine that cuts drafts on the device."""
    requested = {
        "method": "custom_class",
        "model": "specplug_vllm.Proposer",
        "num_speculative_tokens": DRAFT_LENGTH,
        "enable_adaptive_verification": True,
    }
    settings = {"proposer": "ngram", "policy": policy, "options": {policy: {"token_budget": budget}}}
    settings["draft_ranks"] = draft_ranks
    variables = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # tests' functions in other processes
    return engine("v2", settings, speculative_config=requested, environment=variables, name="adaptive", **given)


# `make test` has synchronous steps without a budget and with one of zero.
@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["sync", "async"])
def cutting(request, engine):
    return launch(engine, BUDGET, asynchronous=request.param)


@pytest.fixture
def learning(engine):
    """An engine whose policy learns what steps cost."""
    return launch(engine, policy="batch")


@pytest.mark.parametrize("trim", [True, False], ids=["trimmed", "cut by the engine alone"])
def test_what_was_verified_is_what_the_engine_admitted_and_answers_are_as_without(engine, cutting, trim):
    requested = requests(4, 24, logprobs=3)
    run = cutting.call(steps.cut, requests=requested, trim=trim)
    expected = engine("v2", installed=False, name="baseline v2").call("inside.drive", requests=requested)
    for name, output in run["outputs"].items():
        assert_same(expected[name], output)
    drafted = [(rows, step["drafts"]) for rows, step in zip(run["verified"], run["record"], strict=True)]
    drafted = [(rows, scheduled) for rows, scheduled in drafted if any(scheduled.values())]
    for (rows, scheduled), admitted in zip(drafted, run["admitted"], strict=True):
        assert sum(admitted.values()) == min(BUDGET, sum(scheduled.values()))  # known on the host beforehand
        assert all(count <= scheduled[name] for name, count in admitted.items())
        assert {name: count for name, (count, _) in rows.items()} == {name: admitted[name] for name in rows}
    assert any(len(set(admitted.values())) > 2 for admitted in run["admitted"])
    rows = [row for step in run["verified"] for row in step.values()]
    total = run["total"]
    assert total["accepted"] > 10
    assert total["proposed"] == sum(proposed for _, proposed in rows)
    assert total["verified"] == sum(min(row) for row in rows) > 0
    assert total["never_verified"] == total["proposed"] - total["verified"]
    assert trim or total["never_verified"] > 10


def test_without_a_budget_everything_is_verified(learning):
    run = learning.call(cut_by_nothing, requests=requests(3, 24))
    assert_greedy_texts(run, requests(3, 24))
    with_drafts = [step["drafts"] for step in run["record"] if any(step["drafts"].values())]
    assert run["admitted"] == with_drafts
    assert run["total"]["never_verified"] == 0


def cut_by_nothing(llm, requests):
    """Run requests by plans with neither a budget nor costs, from which the policy learns nothing."""
    planner = inside.scheduler(llm).step_planner.stage._planner
    planner.plan = lambda _: StepPlan(DRAFT_LENGTH)
    planner.observe = lambda _: None
    try:
        return steps.cut(llm, requests)
    finally:
        del planner.plan, planner.observe


def test_the_planner_starts_from_what_vllm_profiles(learning):
    """Graphs are captured on a GPU only, so vLLM's profile is asked for here, and timed on the host."""
    run = learning.call(profiled, requests=requests(3, 24), sizes=[1, 4, 8, 16])
    assert_greedy_texts(run, requests(3, 24))
    costs = [StepCost(**cost) for cost in run["received"]]
    expected = [(size, min(size, 8), 1024 * min(size, 8)) for size in (1, 4, 8, 16, 24, 32, 64) for _ in range(5)]
    assert [(cost.tokens, cost.requests, cost.context_tokens) for cost in costs] == expected
    assert [(cost.draft_length, cost.prompt_tokens) for cost in costs[::5]] == [
        *((0, 0), (0, 0), (0, 0), (1, 0), (2, 0), (3, 0)),
        (DRAFT_LENGTH, 64 - 8 * (DRAFT_LENGTH + 1)),
    ]
    assert [cost.seconds for cost in costs] == [sample / 1e3 for sample in run["milliseconds"]]
    assert run["basis"] == ["assumed", "measured at start", "measured at start"]


def profiled(llm, requests, sizes):
    """Let vLLM profile as it does once graphs of `sizes` are captured, then serve; return what the planner received."""
    runner = inside.runner(llm)
    stage = inside.scheduler(llm).step_planner.stage
    planner = stage._planner
    manager = runner.adaptive_verification
    found = {"basis": [planner._costs.basis]}
    most = manager.req_states.max_num_batched_tokens
    manager.req_states.max_num_batched_tokens = 64
    with timed_on_the_host(), runner.step_timing.collect() as samples:
        for batch in manager.batches_to_profile(sizes):
            runner._dummy_run(**batch)
    manager.req_states.max_num_batched_tokens = most
    manager.set_initial_cost_curves(samples)
    calibrate = planner.calibrate

    def noting(costs):
        calibrate(costs)
        assert "received" not in found
        found["received"] = [asdict(cost) for cost in costs]
        found["basis"].append(planner._costs.basis)

    planner.calibrate = noting
    run = steps.recorded(llm, requests)
    found["basis"].append(stage.status()["basis"])
    return {**run, **found, "milliseconds": [sample.forward_ms for sample in samples]}


@contextmanager
def timed_on_the_host():
    """Let vLLM time steps by the host's clock: events on a CPU are placeholders."""
    from vllm.v1.worker.gpu import async_utils

    class Event:
        def record(self):
            self.at = perf_counter()

        def synchronize(self):
            """Do nothing."""

        def elapsed_time(self, end):
            return 1e3 * (end.at - self.at)

    original = async_utils.StepTimingEvents
    async_utils.StepTimingEvents = lambda: original(Event(), Event(), Event(), Event())
    try:
        yield
    finally:
        async_utils.StepTimingEvents = original


# -- without an engine -----------------------------------------------------------------------------------------------


def create(backend: Any, mode: str) -> Any:
    """Ask for a manager as the runner does, of a model whose only layer has the given attention backend."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.worker.gpu.spec_decode.adaptive_verification import maybe_create_adaptive_verification_manager

    from specplug_vllm.worker.adaptive import _our_manager

    builder = SimpleNamespace(
        get_cudagraph_support=lambda *_: AttentionCGSupport.NEVER,
        get_varlen_cudagraph_max_query_len=lambda *_: None,
    )
    group = SimpleNamespace(
        backend=backend, layer_names=["0"], kv_cache_spec=None, get_metadata_builder=lambda _: builder
    )
    return _our_manager(
        maybe_create_adaptive_verification_manager,
        enable_adaptive_verification=True,
        attn_groups=[[group]],
        req_states=SimpleNamespace(num_speculative_steps=DRAFT_LENGTH),
        query_start_loc=None,
        num_bonus_tokens=1,
        max_total_logits=100,
        vllm_config=graphs.vllm_config(DRAFT_LENGTH, 8, cuts=True, mode=CUDAGraphMode[mode]),
        target_layer_names=None,
        additional_attn_cg_support=None,
    )


def test_a_step_without_drafts_is_not_stated_to_verify_those_of_the_step_before():
    from specplug_vllm.worker.adaptive import BudgetManager

    manager = object.__new__(BudgetManager)
    manager.admitted = 3
    assert [manager.take_counts() for _ in range(2)] == [(3, ()), (0, ())]


@pytest.mark.parametrize("mode", ["NONE", "FULL_AND_PIECEWISE"])
def test_a_backend_that_plans_on_the_host_is_refused_by_name(mode):
    from vllm.v1.attention.backends.mamba1_attn import Mamba1AttentionBackend

    with pytest.raises((ValueError, EngineError), match="Mamba1AttentionBackend"):
        create(Mamba1AttentionBackend, mode)


def test_the_seam_is_declared():
    from specplug_vllm.config import engine_caps

    lengths = [[1, 4, 6], [5, 8, 2]]
    cuts, pads = (engine_caps(graphs.vllm_config(DRAFT_LENGTH, 8, lengths, cuts=cuts)) for cuts in (True, False))
    assert (cuts.verifies_budget, pads.verifies_budget) == (True, False)
    assert (cuts.ragged, cuts.draft_input, cuts.captured_draft_lengths) == (Ragged.NATIVE, Distribution.ONE_HOT, ())
    assert (pads.ragged, pads.draft_input, pads.captured_draft_lengths) == (Ragged.PADDED, Distribution.LOGITS, (2, 6))
    assert cuts.draft_length_change is DraftLengthChange.FREE


@pytest.mark.slow  # two ranks in Triton's interpreter
@pytest.mark.parametrize("draft_ranks", ["first", "each"])
def test_ranks_cut_alike(engine, draft_ranks):
    tp = launch(engine, BUDGET, draft_ranks=draft_ranks, tensor_parallel_size=2, in_process=False)
    given = prompts()[:4]
    found = tp.call("inside.generate", prompts=given, params={"max_tokens": 24})
    assert_greedy(given, [greedy(prompt, 24) for prompt in given], found)
    tp.stop()
