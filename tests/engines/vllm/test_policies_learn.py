"""A policy of somebody else's that learns: its plan half in the scheduler, its trim half in the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import MAX_TOKENS, RUNNERS, assert_greedy, baseline, kind, prompts, truth

__all__ = ["baseline", "kind", "truth"]

PROMPTS = [list(prompt) for prompt in prompts()][:8]
SETTINGS = {"proposer": "ngram", "policy": "learner"}


@pytest.fixture(scope="session")
def learning(kind: str, engine: Callable[..., Engine]) -> Engine:
    return engine(**RUNNERS[kind], specplug=SETTINGS, name=f"learning {kind}")


def learnt(llm: Any, prompts: list[list[int]], params: dict[str, Any]) -> dict[str, Any]:
    """Serve requests; return what was counted, and what the policy's halves have learnt."""
    found = watching.counted(llm, prompts=prompts, params=params)
    planner, trimmer = inside.scheduler(llm).step_planner.stage._planner, watching.drafting(llm).stage._trimmer
    return {
        **found,
        "reports": [asdict(report) for report in planner.reports],
        "costs": [asdict(cost) for cost in planner.costs],
        "prices": [*planner.prices],
        "price": float(trimmer.price),
        "decided": trimmer.counts.tolist(),
    }


@pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
def test_both_halves_learn_and_the_text_stays(kind, learning, truth):
    found = learning.call(learnt, prompts=PROMPTS, params={"max_tokens": MAX_TOKENS})
    assert_greedy(PROMPTS, truth[:8], found["result"])
    assert not [name for name in found["faults"] if name.startswith("policy")]
    reports, total = found["reports"], found["total"]
    steps = [report["step"] for report in reports]
    assert steps == list(range(steps[0], steps[0] + len(steps)))
    assert sum(report["accepted"] for report in reports) == found["accepted_by_vllm"] > 0
    verified = sum(report["verified"] for report in reports)
    assert verified == total["verified"] if kind == "v1" else verified > total["verified"]  # V2's rows are padded
    assert found["decided"] == [total["tested"], total["accepted"]]
    assert len(set(found["prices"])) > 1, "the price was learnt"
    assert min(abs(price - found["price"]) for price in found["prices"]) < 1e-6, "and came to the worker"


def off_then_on(llm: Any, prompts: list[list[int]], params: dict[str, Any]) -> list[dict[str, Any]]:
    """Serve requests while speculation is off, and then on; return `learnt` of both, and the plans that were sent."""
    scheduler, found, plans = inside.scheduler(llm), [], []
    attach = scheduler._attach_metadata

    def attaching(output: Any, plan: Any) -> None:
        attach(output, plan)
        plans.append([id(plan), len(plan.caps)])

    scheduler._attach_metadata = attaching
    try:
        for mode in ("off", "on"):
            scheduler.step_planner.control.set(mode=mode)
            plans.clear()
            found.append({**learnt(llm, prompts, params), "plans": [*plans]})
    finally:
        del scheduler._attach_metadata
        scheduler.step_planner.control.set(mode="on")
    return found


@pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
def test_while_speculation_is_off_no_planner_is_called(kind, learning, truth):
    before = learning.call(learnt, prompts=PROMPTS, params={"max_tokens": MAX_TOKENS})
    off, on = learning.call(off_then_on, prompts=PROMPTS, params={"max_tokens": MAX_TOKENS})
    for found in (off, on):
        assert_greedy(PROMPTS, truth[:8], found["result"])
    assert off["prices"] == before["prices"]
    assert len(off["reports"]) <= len(before["reports"]) + 2  # of steps that were planned before
    assert len(off["plans"]) > 10
    assert len({name for name, _ in off["plans"]}) == 1
    assert not any(caps for _, caps in off["plans"])
    assert off["total"]["proposed"] == 0
    assert off["total"]["emitted"] == sum(len(output["token_ids"]) for output in off["result"])
    assert len(on["prices"]) > len(off["prices"])
    assert on["total"]["accepted"] > 0


@pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
def test_what_steps_cost_is_known(kind, learning):
    found = learning.call(learnt, prompts=PROMPTS, params={"max_tokens": MAX_TOKENS})
    costs = found["costs"]
    assert len(costs) > 10
    assert all(cost["seconds"] > 0 and 0 < cost["requests"] <= len(PROMPTS) for cost in costs)
    decoding = [cost for cost in costs if cost["context_tokens"] and cost["tokens"] <= cost["requests"] * 64]
    assert decoding
    assert all(cost["tokens"] <= cost["requests"] * (cost["draft_length"] + 1) for cost in decoding[-3:])
    assert {report["cost"]["draft_length"] for report in found["reports"] if report["cost"]} - {0}
