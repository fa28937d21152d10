"""Trees have as many nodes as pay at the number of requests that run, also where that changes in the middle of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine

PROMPTS = prompts()[:16]  # twice as many as an engine runs at once
LENGTHS = [8, 12, 40, 16, 20, 40, 24, 28] * 2
NODES = 8
FREE = NODES + 1
"""Tokens of a step that cost nothing, those of one request's largest tree; any other costs half of a plain step."""

SETTINGS = {
    "proposer": "ngram",
    "policy": "batch",
    "options": {"ngram": {"min_n": 1, "min_survival": 0.01}},
    "faults": {"host_deadline_ms": None},
}


@pytest.fixture(scope="session")
def ours(engine: Callable[..., Engine]) -> Engine:
    return engine("SPECPLUG", draft_length=NODES, topk=2, settings=SETTINGS, name="tree costs")


def test_the_text_is_right_where_trees_grow_and_shrink_with_the_batch(ours):
    given = [list(prompt) for prompt in PROMPTS]
    assert ours.call(inside.flush)
    with ours.planted(trees.cost, trees.watch, free=FREE, each=0.5):
        params = [{"max_new_tokens": length} for length in LENGTHS]
        answers = ours.call(inside.generate, prompts=given, params=params)
        ours.call(watching.settled)
        steps = ours.inside(trees.seen)
        status = ours.inside(planned)
    expected = [greedy(prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]
    assert_greedy(given, expected, answers)
    assert status["basis"] == "measured at start"
    alone, among = (
        {name for step in steps if len(step["requests"]) in sizes for name in step["requests"]}
        for sizes in ([1], [7, 8])
    )
    assert alone & among, "a request ran with many others, and alone"
    assert max(nodes_of(steps, 1)) > 1
    assert max(nodes_of(steps[8:], 8)) <= 1, "but for the first steps, in which nothing is reported yet"
    assert any(has_branches(parents) for step in steps for parents in step["parents"] if len(step["requests"]) < 4)


def planned(scheduler: Any) -> dict[str, Any]:
    """Return what the policy states."""
    status: dict[str, Any] = scheduler.draft_worker.drafting.step_planner.stage._planner.status()
    return status


def nodes_of(steps: list[dict[str, Any]], requests: int) -> list[int]:
    """Return the nodes of each step of so many requests, the root not counted."""
    return [len(step["tokens"][0]) - 1 for step in steps if len(step["requests"]) == requests]


def has_branches(parents: list[int]) -> bool:
    hung = [parent for parent in parents if parent >= 0]
    return len(set(hung)) < len(hung)
