"""V2's worker reports what drafts were expected to yield at all lengths, with the step that verifies them."""

from __future__ import annotations

import pytest

from specplug.steps.draft_report import UNIT
from specplug.steps.step_planner import REPORT_EVERY
from tests.engines.vllm import inside, steps, watching
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.steps import assert_greedy_texts, requests

DRAFT_LENGTHS = (0, 3, 8, 0, 0, 1)
LONGEST = 8
SETTINGS = {
    "proposer": "ngram",
    "policy": "listener",
    "options": {"listener": {"draft_lengths": DRAFT_LENGTHS}, "ngram": {"min_survival": 0.001}},
}


@pytest.mark.parametrize("runner", ["v2", "v2_async"])
def test_steps_of_any_planned_length_are_reported_at_all_lengths(engine, runner):
    requested = requests(3, tokens=64)
    run = engine(**RUNNERS[runner], specplug=SETTINGS, name="listener").call(reported, requests=requested)
    assert_greedy_texts(run, requested)
    made = [report for report in run["made"] if report["expected"] is not None]
    known = [report for report in run["reports"] if report["expected"] is not None]
    assert known == [{name: report[name] for name in known[0]} for report in made[: len(known)]]
    assert len(known) > 15
    assert len(known) >= len(made) - 2, "the drafts of the last steps are not verified"
    for report in known:
        assert len(report["expected"]) == LONGEST
        assert report["expected"] == sorted(report["expected"], reverse=True)
        assert report["expected"][0] <= report["expected_rows"] <= 3
    assert {report["draft_length"] for report in known if report["expected"][3]} == set(DRAFT_LENGTHS)
    whole = [report for report in made if report["draft_length"] == LONGEST and report["is_whole"]]
    assert len(whole) > 3
    for report in whole:
        assert report["expected"] == pytest.approx(report["handed"], abs=3 / UNIT)
    assert {step["requested"] for step in run["record"]} == set(DRAFT_LENGTHS)
    planned = list(zip(run["steps"], run["reports"], strict=True))
    idle = [step for step, report in planned if report["expected"] is not None and not report["draft_length"]]
    assert {step % REPORT_EVERY for step in idle} == {0}, "without planned drafts some steps are reported"


def reported(llm, requests):
    """Do as `steps.recorded`; return also what the worker reports of its drafts, and what the policy is told.

    `handed` are the sums over the survival probabilities of the drafts that the engine got, and `is_whole` whether the
    report is of all rows.
    """
    planner = inside.scheduler(llm).step_planner.stage._planner
    worker = inside.runner(llm).speculator.steps
    take = worker.take
    made = []

    def noting(facts, rows, outputs, *others, **given):
        draft = take(facts, rows, outputs, *others, **given)
        report = worker.report
        plan = watching.drafting(llm).plan
        handed = outputs.confidence.cumprod(1).double().sum(0).tolist()
        is_whole = report.expected_rows == len(outputs.ids)
        made.append({"draft_length": plan.draft_length, **fields(report), "handed": handed, "is_whole": is_whole})
        return draft

    planner.reports.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "take", noting)
        found = steps.recorded(llm, requests)
    reports = [{"draft_length": report.draft_length, **fields(report)} for report in planner.reports]
    return {**found, "made": made, "reports": reports, "steps": [report.step for report in planner.reports]}


def fields(report):
    """Return the fields of a report, which a worker's and a policy's share."""
    return {"expected": report.expected, "expected_rows": report.expected_rows}
