"""The policy `batch` gives up drafts that do not pay: exact counts, also of padding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.hopeless import TEXT, assert_forgotten, assert_given_up, batch_policy, file_prefixes, withheld
from tests.engines.sglang import inside


def begin(scheduler: Any) -> None:
    """Let the policy plan."""
    scheduler.hopeless = batch_policy(scheduler.draft_worker.drafting.step_planner)
    scheduler.hopeless_counts = scheduler.hopeless.__enter__()


def end(scheduler: Any) -> list[Any]:
    """Return the counts of its steps, and let the engine's own policy plan again."""
    scheduler.hopeless.__exit__(None, None, None)
    return list(scheduler.hopeless_counts)


def test_drafts_that_do_not_pay_are_given_up(engine):
    specplug = engine("SPECPLUG", name="specplug")
    specplug.inside(begin)
    try:
        specplug.call(inside.generate, prompts=file_prefixes(), params={**TEXT, "max_new_tokens": 400})
    finally:
        counts = specplug.inside(end)
    assert_given_up(counts, 400, 200)


def begin_without_texts(scheduler: Any) -> None:
    """Let the policy plan, and note what steps with drafts report; the proposer never has a text."""
    drafting, scheduler.reported = scheduler.draft_worker.drafting, []
    begin(scheduler)
    stage, steps = drafting.step_planner.stage, drafting.drafts._steps
    scheduler.withheld = withheld(steps, "launch", drafting.stage.runners[0])
    scheduler.withheld.__enter__()
    observe = stage.observe

    def noting(report: Any) -> None:
        if report.draft_length:
            scheduler.reported.append((report.requests, report.verified, len(report.runs)))
        observe(report)

    stage.observe = noting


def end_without_texts(scheduler: Any) -> list[Any]:
    """Return what was reported, and let everything be as before."""
    scheduler.withheld.__exit__(None, None, None)
    end(scheduler)
    return list(scheduler.reported)


def test_rows_that_could_not_draft_are_no_evidence(engine):
    specplug = engine("SPECPLUG", name="specplug")
    specplug.inside(begin_without_texts)
    try:
        specplug.call(inside.generate, prompts=file_prefixes()[:2], params={**TEXT, "max_new_tokens": 20})
    finally:
        found = specplug.inside(end_without_texts)
    assert found
    assert [report for report in found if any(report)] == []


@pytest.mark.slow  # an engine of its own, as drafts are hopeless only where text is sampled
def test_easy_requests_in_their_slots_are_drafted_for_as_before(engine):
    specplug = engine("SPECPLUG", sampling=True, name="specplug, sampling")

    def share(prompts: list[list[int]], hopeless: bool) -> float:
        own = {**TEXT, "max_new_tokens": 200} if hopeless else {"custom_params": {"specplug": {"store": False}}}
        answers = specplug.call(inside.generate, prompts=prompts, params=own)
        accepted = sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers)
        return float(accepted / sum(len(answer["token_ids"]) for answer in answers))

    assert_forgotten(share)
