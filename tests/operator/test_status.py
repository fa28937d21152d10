"""Why the newest plan has drafts or none, and what drafting is expected to gain, from a status."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.operator.status import REASONS, decision, reason

PADDED = {"why": "w", "draft_length": 3, "speed_up": 1.2}
RAGGED = {"why": "w", "draft_length": 8, "speed_up": 1.5}


@pytest.mark.parametrize(
    ("steps", "ceiling", "planned", "policy", "expected"),
    [
        (9, 0, 8, {}, "off by operator"),
        (0, None, 0, {}, "no step yet"),
        (9, None, 8, {}, "drafting"),
        (9, 3, 3, PADDED, "drafting"),
        (9, None, 0, {}, "off by policy"),
        (9, None, 0, {**RAGGED, "draft_length": 0}, "off by policy"),
        (9, None, 1, {**PADDED, "draft_length": 0}, "probing"),
        (9, None, 0, RAGGED, "paused"),
        (9, None, 0, {"adaptive": {"acceptance": 0.5}, "batch": RAGGED}, "paused"),
    ],
)
def test_each_reason(steps, ceiling, planned, policy, expected):
    assert expected in REASONS
    assert reason(steps, ceiling, planned, policy) == expected


@pytest.mark.parametrize(
    ("policy", "factor"),
    [
        (PADDED, 1.2),
        (RAGGED, 1.5),
        ({"batch": {**RAGGED, "draft_length": 0}, "adaptive": {"acceptance": 0.5}}, 1.5),
        ({"draft_length": 4}, None),
    ],
)
def test_the_speed_up_is_what_the_policy_reports(policy, factor):
    found = decision(policy)
    assert found is not None
    assert found.speed_up == factor


@pytest.mark.parametrize(
    "report", [{}, {"error": "x"}, {"draft_length": None}, {"draft_length": 2, "speed_up": float("nan")}]
)
def test_other_reports_are_passed_over(report: dict[str, Any]):
    assert decision(report) is None
    assert decision({"mine": report, "batch": RAGGED}) == decision(RAGGED)
