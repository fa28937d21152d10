"""The policy `batch` gives up drafts that do not pay: exact counts, also of padding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.hopeless import TEXT, assert_forgotten, assert_given_up, batch_policy, file_prefixes, withheld
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import fields


def served(llm: Any, prompts: list[list[int]], params: dict[str, Any]) -> list[Any]:
    """Serve requests under the policy; return the counts of its steps."""
    with batch_policy(inside.scheduler(llm).step_planner) as counts:
        inside.generate(llm, prompts, params)
    return counts


V2 = pytest.param("v2_async", 50, 32, marks=pytest.mark.slow)


@pytest.mark.parametrize(("kind", "tokens", "after"), [("v1", 400, 200), V2])
def test_drafts_that_do_not_pay_are_given_up(kind, tokens, after, v1, v2_async):
    engine = {"v1": v1, "v2_async": v2_async}[kind]
    assert_given_up(engine.call(served, prompts=file_prefixes(), params={**TEXT, "max_tokens": tokens}), tokens, after)


def served_without_texts(llm: Any, prompts: list[list[int]], params: dict[str, Any]) -> list[Any]:
    """Serve requests whose texts the proposer never has; return what steps with drafts report."""
    planner, reports = inside.scheduler(llm).step_planner, []
    runner, steps = watching.drafting(llm).stage.runners[0], watching.runner(llm).speculator._steps
    with batch_policy(planner), withheld(steps, "launch", runner):
        observe = planner.stage.observe

        def noting(report: Any) -> None:
            if report.draft_length:
                reports.append((report.verified, len(report.runs)))
            observe(report)

        planner.stage.observe = noting
        inside.generate(llm, prompts, params)
    return reports


def test_padding_of_rows_that_could_not_draft_is_no_evidence(v2_async):
    found = v2_async.call(served_without_texts, prompts=file_prefixes()[:2], params={**TEXT, "max_tokens": 12})
    assert found
    assert [report for report in found if any(report)] == []


@pytest.mark.parametrize(("kind", "tokens"), [("v1", 200), ("v2_async", 24)])
def test_easy_requests_in_their_slots_are_drafted_for_as_before(kind, tokens, v1, v2_async):
    engine = {"v1": v1, "v2_async": v2_async}[kind]

    def share(prompts: list[list[int]], hopeless: bool) -> float:
        own = {**TEXT, "max_tokens": tokens} if hopeless else {"max_tokens": 24, **fields(store=False)}
        found = engine.call("watching.counted", prompts=prompts, params=[own] * len(prompts))
        return float(found["total"]["accepted"] / sum(len(answer["token_ids"]) for answer in found["result"]))

    assert_forgotten(share)
