"""A policy of a third party that learns: both halves receive each step's outcome, and the text stays.

The reports that a planner receives are tested once, in `tests/steps/test_stages.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.suites.served import Served

GIVEN = prompts()[:8]
SETTINGS = {"proposer": "ngram", "policy": "learner"}


class LearningSuite:
    """The engine says where its policy's halves are."""

    def learnt(self, served: Served) -> dict[str, Any]:
        """Return what `learnt_by` does of the engine's step planner and draft stage."""
        raise NotImplementedError

    def test_both_halves_learn_and_the_text_stays(self, start: Callable[..., Served]):
        served = start(SETTINGS, name="learning")
        answers = served.counted(GIVEN)
        assert_greedy(GIVEN, [greedy(prompt) for prompt in GIVEN], answers["answers"])
        found = self.learnt(served)
        total = answers["total"]
        assert answers["faults"] == {}
        assert found["faults"] == 0
        reports = found["reports"]
        assert [report["step"] for report in reports] == list(
            range(reports[0]["step"], reports[0]["step"] + len(reports))
        )
        assert sum(report["accepted"] for report in reports) >= total["accepted"] > 0
        assert sum(report["verified"] for report in reports) >= total["verified"]
        assert all(report["verified"] <= report["draft_length"] * report["requests"] for report in reports)
        assert found["decided"] == [total["tested"], total["accepted"]]
        assert len(set(found["prices"])) > 1, "the price was learnt"
        assert min(abs(price - found["price"]) for price in found["prices"]) < 1e-6, "and came to the trim half"
        costs = found["costs"]
        assert len(costs) > 10
        assert all(cost["seconds"] > 0 and 0 < cost["requests"] <= len(GIVEN) for cost in costs)
        assert {report["cost"]["draft_length"] for report in reports if report["cost"]} - {0}


def learnt_by(step_planner: Any, stage: Any) -> dict[str, Any]:
    """Return what a policy's halves have learnt, in an engine's process."""
    planner = step_planner.stage._planner
    trimmer = stage._trimmer
    return {
        "reports": [asdict(report) for report in planner.reports],
        "costs": [asdict(cost) for cost in planner.costs],
        "prices": [*planner.prices],
        "price": float(trimmer.price),
        "faults": len(step_planner.faults),
        "decided": trimmer.counts.tolist(),
    }
