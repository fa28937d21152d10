"""Steps that a worker times before the first request, and reports of what drafts are expected to yield."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.steps.step_planner import REPORT_EVERY
from specplug.types.step import StepPlan
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine

PROMPTS = [list(prompt) for prompt in prompts()[:4]]
ROWS, LENGTH = 4, 8
NUMBA = os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache" / "specplug")
SETTINGS = {"proposer": "ngram", "policy": "learner", "faults": {"host_deadline_ms": None}}
COSTS = {"costs": {"measure": True, "seconds": 20.0}}


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that is empty at first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def timed(engine: Callable[..., Engine], home: Path) -> Callable[..., Engine]:
    """Make an engine whose policy learns, and which has this cache folder."""

    def launch(name: str, **how: Any) -> Engine:
        environment = {"XDG_CACHE_HOME": str(home), "NUMBA_CACHE_DIR": NUMBA, **how.pop("environment", {})}
        how = {"draft_length": LENGTH, "max_running_requests": ROWS, "environment": environment, **how}
        return engine("SPECPLUG", settings={**SETTINGS, **COSTS}, name=name, **how)

    return launch


def traces(scheduler: Any) -> dict[str, Any]:
    """Return where steps before the first request could have left something, and what the policy was told."""
    from specplug_sglang.status import scheduler_status

    drafting, pool = scheduler.draft_worker.drafting, scheduler.req_to_token_pool
    planner, allocator = drafting.step_planner.stage._planner, scheduler.token_to_kv_pool_allocator
    return {
        "costs": [[cost.requests, cost.tokens, cost.draft_length, cost.seconds] for cost in planner.calibrated],
        "status": scheduler_status(scheduler)["scheduler"]["costs"],
        "places in use": allocator.size - allocator.available_size(),
        "rows in use": pool.size - len(pool.free_slots),
        "places of rows": int(pool.req_to_token.abs().sum()),
        "requests": len(drafting.held) + len(scheduler.running_batch.reqs) + len(scheduler.waiting_queue),
        "steps": drafting.step_planner.steps + scheduler.forward_ct + len(planner.reports),
        "counted": drafting.stage.metrics.snapshot().total.target_steps,
    }


def answered(engine: Engine) -> None:
    """Let an engine answer, and compare with the model."""
    answers = engine.call(inside.generate, prompts=PROMPTS)
    assert_greedy(PROMPTS, [greedy(tuple(prompt)) for prompt in PROMPTS], answers)
    engine.call(watching.settled)


def test_costs_are_known_before_the_first_request_and_nothing_else_is_left(timed):
    engine = timed("timed steps")
    found = engine.inside(traces)
    assert {(1, 1, 0), (1, 2, 1), (ROWS, ROWS, 0), (ROWS, 2 * ROWS, 1)} <= {tuple(cost[:3]) for cost in found["costs"]}
    assert all(tokens == rows * (length + 1) and seconds > 0 for rows, tokens, length, seconds in found["costs"])
    status = found["status"]
    assert (status["basis"], len(status["steps"])) == ("measured at start", len(found["costs"]))
    del found["costs"], found["status"]
    assert set(found.values()) == {0}, found
    answered(engine)


@pytest.mark.slow  # two processes that take turns
def test_all_ranks_run_the_same_timed_steps(timed):
    engine = timed("timed steps, two ranks", tp_size=2, environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|0"})
    assert len(engine.inside(traces)["costs"]) > 4
    answered(engine)


# -- reports ---------------------------------------------------------------------------------------------------------

REPORTS: list[Any] = []
"""What the policy was told that drafts are expected to yield, and of how many rows, by step."""


@pytest.mark.parametrize("plans", [True, False], ids=["planned", "none planned"])
def test_steps_report_what_all_draft_tokens_are_expected_to_yield(engine, plans):
    """Every step does while drafts are planned, and every eighth otherwise."""
    settings = {**SETTINGS, "policy": "batch"}
    learning = engine("SPECPLUG", draft_length=LENGTH, settings=settings, name="reports of drafts")
    with learning.planted(skip, trees.watch, record, steps=0 if plans else 999):
        answered(learning)
        seen, found = learning.inside(trees.seen), learning.inside(recorded)
    assert any(len(step["tokens"][0]) > 1 for step in seen) is plans
    stated = [(expected, rows) for expected, rows in found if expected is not None]
    share = len(stated) / len(found)
    assert share > 0.5 if plans else 0.5 < share * REPORT_EVERY < 1.5
    for expected, rows in stated:
        assert len(expected) == LENGTH
        assert all(0 <= later <= earlier + 1e-6 for earlier, later in zip([rows, *expected], expected, strict=False))
    assert max(expected[LENGTH - 1] for expected, _ in stated) > 0, "all lengths, whatever was planned"


def skip(scheduler: Any, steps: int) -> None:
    """Plan no drafts for so many steps."""
    stage = scheduler.draft_worker.drafting.step_planner.stage
    skips = iter([StepPlan(0)] * steps)
    original = trees.put(stage, "plan", lambda stats: next(skips, None) or original(stats))


def record(scheduler: Any) -> None:
    """Record what the policy is told."""
    stage = scheduler.draft_worker.drafting.step_planner.stage

    def observe(report: Any) -> None:
        REPORTS.append([report.expected, report.expected_rows])
        original(report)

    REPORTS.clear()
    original = trees.put(stage, "observe", observe)


def recorded(scheduler: Any) -> list[Any]:
    return REPORTS
