"""Results of SGLang's steps arrive a step late, and count as far as clients see them.  Needs no SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specplug.steps.draft_report import NO_DRAFTS
from specplug.steps.outcome_counts import OutcomeCounts
from specplug.types.step import StepPlan, StepRecord
from specplug_sglang.scheduler.results import Results

LENGTH = 4


class Planner:
    """Stands in for the planner; keeps the results that it receives."""

    is_off = False
    reads_costs = True
    plan = StepPlan(LENGTH)

    def __init__(self) -> None:
        self.finished: list[Any] = []

    def launch(self, began: float, cost: Any, *, timed: bool) -> StepRecord:
        return StepRecord(self.plan, 1)

    def finish(self, step: StepRecord, results: Any, ended: float, report: Any) -> None:
        self.finished.append(results)


def request(*, tokens: int = 1, ended: bool = False, through_stop: int = 0) -> Any:
    """A request with so many output tokens; once it has `ended`, a client sees those up to the stop."""
    return SimpleNamespace(
        rid="r",
        origin_input_ids=[1, 2],
        output_ids=[4] * tokens,
        output_ids_through_stop=[4] * through_stop,
        is_retracted=False,
        finished=lambda: ended,
    )


def launched(results: Results, reqs: list[Any], verified: int = LENGTH) -> None:
    verified = SimpleNamespace(cap_lens=torch.full((len(reqs),), verified + 1))
    results.add(0.0, reqs, LENGTH, verified, NO_DRAFTS)


@pytest.mark.parametrize(
    ("accepted", "ends", "counted"),
    [
        (2, None, (1, 4, 2, 3)),
        (4, None, (1, 4, 4, 5)),
        (4, 2, (1, 1, 1, 2)),  # a stop within the draft: the end is a token that any step emits
        (4, 5, (1, 4, 4, 5)),  # at its very end
        (0, 1, (1, 4, 0, 1)),
        (4, 1, (1, 0, 0, 1)),
    ],
)
def test_drafts_count_up_to_the_end_that_sglang_finds_after_the_step(accepted, ends, counted):
    counts = OutcomeCounts("eagle", LENGTH)
    planner = Planner()
    results = Results(planner, None, counts)  # type: ignore[arg-type]
    req = request()
    launched(results, [req])
    results.verified([accepted])
    if ends is not None:
        req.output_ids_through_stop = [4] * (1 + ends)
        req.finished = lambda: True
    results.settle()
    total = counts.snapshot({}).total
    assert (total.target_steps, total.verified, total.accepted, total.emitted) == counted
    assert counts.snapshot({}).by_source["eagle"].target_steps == 1, "it had a draft, also if nothing of it counts"
    assert planner.finished == [[("r", *counted[1:3])]]


@pytest.mark.parametrize(("cap", "source"), [(0, "off"), (3, "none")])
def test_rows_without_drafts_count_by_whether_they_might_draft(cap, source):
    counts, planner = OutcomeCounts("eagle", LENGTH), Planner()
    planner.plan = StepPlan(LENGTH, caps={"r": cap})
    results = Results(planner, None, counts)  # type: ignore[arg-type]
    launched(results, [request()], verified=0)
    results.verified([0])
    results.settle()
    rows = {name: each.target_steps for name, each in counts.snapshot({}).by_source.items() if each.target_steps}
    assert rows == {source: 1}


def test_a_request_that_ended_while_sglang_ran_ahead_is_not_counted():
    counts = OutcomeCounts("eagle", LENGTH)
    results = Results(Planner(), None, counts)  # type: ignore[arg-type]
    launched(results, [request(ended=True), request()])
    results.verified([4, 0])
    results.settle()
    total = counts.snapshot({}).total
    assert (total.target_steps, total.verified, total.accepted, total.emitted) == (1, 4, 0, 1)


@pytest.mark.parametrize("verified", [0, LENGTH])
def test_a_request_that_was_retracted_while_its_step_ran_is_not_counted(verified):
    """SGLang drops its tokens, and computes them anew once it has resumed."""
    counts, planner = OutcomeCounts("eagle", LENGTH), Planner()
    results = Results(planner, None, counts)  # type: ignore[arg-type]
    retracted = request()
    launched(results, [retracted, request()], verified)
    retracted.is_retracted = True
    results.verified([2, 0] if verified else [0, 0])
    results.settle()
    total = counts.snapshot({}).total
    assert (total.target_steps, total.verified, total.accepted, total.emitted) == (1, verified, 0, 1)
    assert planner.finished == [[("r", verified, 0)]]


def test_a_plain_step_of_a_request_that_was_retracted_meanwhile_is_not_counted():
    counts = OutcomeCounts("eagle", LENGTH)
    results = Results(Planner(), None, counts)  # type: ignore[arg-type]
    retracted = request()
    results.add(0.0, [retracted, request()], 0, None, NO_DRAFTS)
    retracted.is_retracted = True
    results.verified([0, 0])
    total = counts.snapshot({}).total
    assert (total.target_steps, total.emitted) == (1, 1)


def test_a_request_that_sglang_ends_in_place_of_its_step_is_not_counted():
    counts, planner = OutcomeCounts("eagle", LENGTH), Planner()
    results = Results(planner, None, counts)  # type: ignore[arg-type]
    req = request(through_stop=1)
    launched(results, [req])
    results.verified([4])
    req.finished = lambda: True
    results.settle()
    assert {name: each.emitted for name, each in counts.snapshot({}).by_source.items()} == {"eagle": 0, "none": 0}
    assert planner.finished == [[]]


def test_results_of_a_step_that_the_worker_did_not_see_are_dropped():
    counts = OutcomeCounts("eagle", LENGTH)
    planner = Planner()
    results = Results(planner, None, counts)  # type: ignore[arg-type]
    results.verified([1])
    launched(results, [request()])
    results.verified([1, 1])
    results.verified([1])
    results.settle()
    assert counts.snapshot({}).total.target_steps == 0
    assert planner.finished == []
