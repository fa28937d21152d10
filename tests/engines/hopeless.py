"""Drafts that do not pay, after which those of later requests in the same slots must not suffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specplug.assembly import build_plan_stage
from specplug.demo.tasks import KINDS
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from tests.engines.plain import prompts

ROWS, SHARE = 4, 0.005
TEXT = {"temperature": 2.0, "ignore_eos": True}
EASY = [list(prompt) for prompt in prompts()[KINDS.index("edit") :: len(KINDS)][: ROWS - 1]]
"""Prompts whose answers repeat them; served without being remembered, in slots that `file_prefixes` had."""

Counts = list[tuple[int, int, int]]
"""Per step that was planned its number, and the draft positions that were verified, padding included, and accepted."""


def file_prefixes() -> list[list[int]]:
    """Return prompts that are continued at the temperature of `TEXT` in such a way that hardly any draft is right."""
    return [list(prompt) for prompt in prompts()[KINDS.index("code") :: len(KINDS)][:ROWS]]


@contextmanager
def batch_policy(step_planner: Any) -> Iterator[Counts]:
    """Let `batch` plan an engine's steps, and tell it that a step takes as long as its tokens; yields the counts."""
    settings = step_planner.resolved.settings.model_copy(update={"policy": "batch", "options": {}})
    context = PluginContext(caps=step_planner.caps)
    stage = build_plan_stage(settings, default_registry(), context, lambda *_: None)
    before, finish, counts = (step_planner.stage, step_planner.reads_costs), step_planner.finish, []
    first = step_planner.steps
    observe = stage.observe

    def noting(report: Any) -> None:
        verified = report.draft_length * report.requests
        if report.cost is not None:
            verified = report.cost.tokens - report.cost.requests - report.cost.prompt_tokens
        counts.append((report.step - first, verified, report.accepted))
        observe(report)

    def stated(step: Any, fates: Any, ended: float, **known: Any) -> None:
        finish(step._replace(began=ended), fates, ended + 1e-6 * (step.cost[1] if step.cost else 0), **known)

    stage.observe, step_planner.finish = noting, stated  # type: ignore[method-assign]
    step_planner.stage, step_planner.reads_costs = stage, stage.reads_costs
    try:
        yield counts
    finally:
        step_planner.stage, step_planner.reads_costs = before
        step_planner.holds_until = 0
        del step_planner.finish


@contextmanager
def planned_by_batch(step_planner: Any, steps: Any, runner: Any = None) -> Iterator[Any]:
    """Do as `batch_policy`; if the proposer of a `runner` is to have no texts, yield what steps with drafts report."""
    with batch_policy(step_planner) as counts:
        if runner is None:
            yield counts
            return
        reports: list[Any] = []
        observe = step_planner.stage.observe

        def noting(report: Any) -> None:
            if report.draft_length:
                reports.append((report.verified, len(report.runs)))
            observe(report)

        step_planner.stage.observe = noting
        with withheld(steps, "launch", runner):
            yield reports


def assert_given_up(counts: Counts, tokens: int, after: int) -> None:
    """Hold what is verified in vain after so many steps to a share of what is emitted then, and one probe of two steps.

    It ends where a request may: the costs of another batch size are tried anew.

    Args:
        tokens: how many each row emits.
    """
    end = tokens - sum(accepted for *_, accepted in counts)
    early, late = [one for one in counts if one[0] < after], [one for one in counts if after <= one[0] < end]
    assert sum(verified for _, verified, _ in early) > ROWS, "drafts were tried"
    emitted = ROWS * (end - after)
    assert emitted > ROWS * 10
    assert sum(verified - accepted for _, verified, accepted in late) <= SHARE * emitted + 2 * ROWS


@contextmanager
def withheld(owner: Any, method: str, runner: Any) -> Iterator[None]:
    """Let the steps that `owner.method` launches find that the proposer has ingested no text."""
    launch = getattr(owner, method)

    def launching(*args: Any, **kwargs: Any) -> Any:
        known = runner.generations.clone()
        runner.generations.fill_(-1)
        try:
            return launch(*args, **kwargs)
        finally:
            runner.generations.copy_(known)

    setattr(owner, method, launching)
    try:
        yield
    finally:
        delattr(owner, method)


def assert_forgotten(share: Callable[[list[list[int]], bool], float]) -> None:
    """Hold drafts of easy requests to what they were before hopeless ones had the same slots, to a share of 0.05.

    Args:
        share: serves prompts, hopeless or not, by the policy `fixed`; returns accepted draft tokens per emitted token.
    """
    fresh = share(EASY, False)
    assert fresh > 0.5
    assert share(file_prefixes(), True) < 0.2, "they were not hopeless"
    assert share(EASY, False) >= 0.95 * fresh
