"""The benchmark of V2's host time: medians over all rounds' steps, sums taken by step, and ratios to the baseline."""

from __future__ import annotations

import pytest

from benchmarks.host_clock import PROPOSER, SCHEDULER, VLLM, WORKER
from benchmarks.host_time_v2 import cells, compared, summary


def step(vllm: float, scheduler: float, worker: float, proposer: float, drafts: float = 4.0) -> dict[str, float]:
    return {VLLM: vllm, SCHEDULER: scheduler, WORKER: worker, PROPOSER: proposer, "model": 70, "drafts": drafts}


def test_medians_are_of_all_steps_and_sums_are_taken_by_step():
    rounds = [
        {"rows": [step(100, 1, 20, 300), step(200, 2, 30, 100)], "launches": 3.0, "functions": [[60, 20, 90]]},
        {"rows": [step(900, 3, 10, 200, drafts=1.0)], "launches": 2.0, "functions": [[70, 22, 100], [80, 21, 95]]},
    ]
    found = summary(rounds)
    assert (found[SCHEDULER], found[WORKER], found[PROPOSER]) == (2, 20, 200)
    assert (found["drafting"], found["host"]) == (213, 421)  # of 321, 132, 213, and of 421, 332, 1113
    assert (found["launches"], found["drafts"]) == (2.5, 3.0)
    assert (found["functions"], found["files"], found["calls"]) == (70, 21, 95)


def test_both_sums_are_compared_with_the_baseline():
    ours = summary([{"rows": [step(1000, 50, 50, 150)], "launches": 3.0}])
    baseline = summary([{"rows": [step(1050, 0, 0, 200)], "launches": 2.0}])
    ratios = compared(ours, baseline)
    assert ratios == {"drafting": (1.25, 50), "host": (pytest.approx(1.0), 0)}
    row = cells({"batch": 8, "drafter": "fixed", **ours, "compared": ratios})
    assert row == ["8", "fixed", "50", "50", "150", "250 (1.25, +50)", "1250 (1.00, +0)", "70", "3", "4.0"]
    assert cells({"batch": 8, "drafter": "ngram_gpu", **baseline})[2:7] == ["0", "0", "200", "200", "1250"]
