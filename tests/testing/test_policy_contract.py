"""The contract for policies catches what it is there to catch: for every clause, a policy that breaks it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from time import sleep
from typing import Any

import pytest
import torch

from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.steps.trim import SurvivalTrimmer, rank_tokens
from specplug.testing.policy_contract import PolicyContract
from specplug.testing.policy_harness import PROFILE, watch_for_waiting
from specplug.types.caps import EngineCaps
from specplug.types.plan import HostStats, StepReport, TrimLimits
from specplug.types.step import CostPoint, Draft, EngineBatch, StepCost, StepPlan, Verdict
from tests.testing.clauses import clauses, code_block


class Plans(Planner):
    """A sound plan half, which learns how long drafts are accepted."""

    def __init__(self, context: PluginContext) -> None:
        self.context, self.accepted = context, 1.0

    def plan(self, stats: HostStats) -> StepPlan:
        return StepPlan(self.draft_length(stats))

    def draft_length(self, stats: HostStats) -> int:
        return self.context.caps.fit_draft_length(round(2 * self.accepted))

    def observe(self, report: StepReport) -> None:
        self.accepted += (report.accepted / max(1, report.requests) - self.accepted) / 8


class Trims(SurvivalTrimmer):
    """A sound trim half, which counts what is accepted."""

    def __init__(self, context: PluginContext) -> None:
        self.accepted = torch.zeros((), dtype=torch.int64, device=context.device)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.accepted += verdict.accepted.sum()


def contract_of(plans: Any = Plans, trims: Any = Trims) -> type[PolicyContract]:
    spec = PolicySpec(name="planted", factory=plans, trimmer=trims, summary="")
    return type("Contract", (PolicyContract,), {"spec": spec})


class TestSound(contract_of()):  # type: ignore[misc]
    pass


INSTALLED = Registry.discover()


class TestBatch(PolicyContract):
    spec = INSTALLED.get(PolicySpec, "batch")


class TestBatchWhereTokensCost(PolicyContract):
    spec = INSTALLED.get(PolicySpec, "batch")
    options = {"saturation": 8}  # noqa: RUF012


class TestFixed(PolicyContract):
    spec = INSTALLED.get(PolicySpec, "fixed")


class TestNone(PolicyContract):
    spec = INSTALLED.get(PolicySpec, "none")


# -- one clause broken by each of what follows -------------------------------------------------------------------------


def instead(base: type[Any], **members: Any) -> type[Any]:
    """Return a half of a policy with other members than the base's."""
    return type("Planted", (base,), members)


def before(change: Callable[[Draft], Any]) -> type[Trims]:
    """Return a trim half that makes a change first."""
    return instead(Trims, trim=lambda self, draft, limits: change(draft) and Trims.trim(self, draft, limits))


def lengths(draft_length: Callable[[Any, HostStats], Any], **members: Any) -> type[Plans]:
    """Return a plan half of other draft lengths."""
    return instead(Plans, draft_length=draft_length, **members)


class NegativeBudget(Plans):
    def plan(self, stats: HostStats) -> StepPlan:
        return replace(super().plan(stats), token_budget=256 - len(stats.requests))


class NegativeCaps(Plans):
    def plan(self, stats: HostStats) -> StepPlan:
        return replace(super().plan(stats), caps={request.request_id: -3 for request in stats.requests})


class NeedsATime(Plans):
    def observe(self, report: StepReport) -> None:
        if report.requests:
            self.accepted = report.cost.seconds  # type: ignore[union-attr]


class CalibratedTooLong(Plans):
    def calibrate(self, costs: Sequence[StepCost]) -> None:
        self.context = replace(self.context, caps=EngineCaps(8 + len(costs)))
        self.accepted = 9.0 * len(costs)


class KeepsEnds(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        trimmed = super().trim(draft, limits)
        return trimmed.keep(torch.arange(trimmed.draft_length) >= 1)


class SwapsSiblings(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        trimmed = super().trim(draft, limits)
        if trimmed.parents is not None and trimmed.lengths[2] == 4:  # whose first two nodes follow the context
            for column in (trimmed.token_ids, trimmed.confidence, trimmed.source):
                column[2, :2] = column[2, :2].flip(0)
            trimmed.parents[2, 2:] = 1 - trimmed.parents[2, 2:]
        return trimmed


class CostsBackwards(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        levels, price = rank_tokens(draft)[0], limits.costs[1:2]
        return draft.keep((levels >= price) & (levels >= 3700 - price))


class KeepsItsBuffer(Trims):
    """Keeps a mask of as many rows as its first draft has."""

    mask: torch.Tensor | None = None

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        if self.mask is None:
            self.mask = torch.ones_like(draft.mask())
        return super().trim(draft.keep(self.mask), limits)


class FirstRowsFirst(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        order = draft.mask().int().flatten().cumsum(0).view(draft.batch_size, draft.draft_length)
        return draft.keep(order <= limits.token_budget)


class DependsOnRank(Trims):
    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self.rank = context.rank

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return super().trim(draft, replace(limits, token_budget=limits.token_budget - self.rank))


class ReadsTheBudget(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return super().trim(draft, limits) if int(limits.token_budget) else draft


count = itertools.count()
backwards = (CostPoint(4, 1.0), CostPoint(2, 2.0))

PLAN = "test_plans_within_limits_and_alike"
PART = "test_keeps_a_part_within_the_budget"
COSTS = "test_respects_the_costs"
VERDICTS = "test_learns_from_verdicts"

PLANTED: dict[str, tuple[type[Any], str, tuple[Any, ...], str]] = {
    "needs a request": (
        lengths(lambda _, stats: 4 + stats.requests[0].length % 2),
        *(PLAN, (None,), "index out of range"),
    ),
    "a draft length alone": (instead(Plans, plan=lambda *_: 4), PLAN, (None,), "expected a StepPlan"),
    "too wide": (lengths(lambda *_: 16), PLAN, (None,), "length 16"),
    "a fraction": (
        lengths(lambda self, _: self.context.caps.max_draft_length / 2, observe=Planner.observe),
        *(PLAN, (None,), r"length 4\.0"),
    ),
    "a negative budget": (NegativeBudget, PLAN, (None,), "token_budget -256"),
    "negative caps": (NegativeCaps, PLAN, (None,), "caps {.*-3}"),
    "a plan for no step": (
        instead(Plans, plan=lambda self, stats: StepPlan(self.draft_length(stats), num_steps=0)),
        *(PLAN, (None,), "num_steps 0"),
    ),
    "costs that descend": (
        instead(Plans, plan=lambda self, stats: StepPlan(self.draft_length(stats), costs=backwards)),
        *(PLAN, (None,), "no curve"),
    ),
    "longer than stated": (
        lengths(lambda *_: 4, longest_draft=lambda _, batch_size: 4 if batch_size < 8 else 3),
        *(PLAN, (None,), "draft length 4 for 32 requests"),
    ),
    "sleeps": (lengths(lambda *_: time.sleep(0) or 0), "test_does_not_wait", (), "time.sleep"),
    "sleeps by another name": (lengths(lambda *_: sleep(0) or 0), "test_does_not_wait", (), "time.sleep"),
    "waits for an event": (
        lengths(lambda _, stats: int(bool(stats.requests) and Event().wait())),
        *("test_does_not_wait", (), "Condition.wait"),
    ),
    "reads a file": (lengths(lambda *_: 0 * len(Path(__file__).read_bytes())), "test_does_not_wait", (), "open"),
    "draws lots": (
        lengths(lambda self, _: self.context.caps.fit_draft_length(next(count) % 5)),
        *(PLAN, (None,), "plan differently"),
    ),
    "not constant": (
        lengths(lambda self, stats: self.context.caps.fit_draft_length(len(stats.requests)), is_constant=True),
        *("test_a_constant_plan_is_constant", (), "`is_constant`, but on"),
    ),
    "divides by requests": (
        instead(Plans, observe=lambda _, report: report.accepted / report.requests),
        *("test_learns_from_reports", (), "division by zero"),
    ),
    "needs a time": (NeedsATime, "test_learns_from_reports", (), "seconds"),
    "needs a cost": (
        instead(Plans, calibrate=lambda _, costs: min(cost.seconds for cost in costs)),
        *(PLAN, ((),), "empty"),
    ),
    "calibrated too long": (CalibratedTooLong, PLAN, (PROFILE[:1],), "draft length 9"),
    "other tokens": (
        before(lambda draft: [draft.token_ids.masked_fill_(draft.mask(), 63)]),
        *(PART, (False,), "expected tokens, confidences"),
    ),
    "other confidences": (
        before(lambda draft: [draft.confidence.mul_(0.5)]),
        *(PART, (True,), "expected tokens, confidences"),
    ),
    "other sources": (
        before(lambda draft: [draft.source.masked_fill_(draft.mask(), 0)]),
        *(PART, (False,), "expected tokens, confidences, sources"),
    ),
    "other contexts": (before(lambda draft: [draft.base_len.add_(1)]), PART, (False,), "base_len is .*expected"),
    "keeps its buffer": (KeepsItsBuffer, PART, (False,), "shape|size"),
    "keeps nothing": (
        instead(Trims, trim=lambda _, draft, limits: draft.keep(torch.zeros_like(draft.mask()))),
        *("test_keeps_tokens_that_cost_nothing", (True,), "kept no draft tokens"),
    ),
    "keeps ends": (KeepsEnds, PART, (False,), "and parents of"),
    "swaps siblings": (SwapsSiblings, PART, (True,), "expected their order"),
    "tears trees": (
        before(lambda draft: [draft.parents is not None and draft.parents.fill_(-1)]),
        *(PART, (True,), "and parents of"),
    ),
    "one too many": (
        instead(
            Trims,
            trim=lambda self, draft, limits: Trims.trim(
                self, draft, replace(limits, token_budget=limits.token_budget + 1)
            ),
        ),
        *(PART, (False,), "expected at most 0"),
    ),
    "a budget per row": (
        instead(
            Trims,
            trim=lambda _, draft, limits: draft.keep(torch.arange(draft.draft_length) < limits.token_budget),
        ),
        *(PART, (True,), "expected at most 1"),
    ),
    "no costs": (
        instead(Trims, trim=lambda _, draft, limits: draft.keep(rank_tokens(draft)[1] < limits.token_budget)),
        *(COSTS, (False,), "below 0.2"),
    ),
    "no jump": (
        instead(
            Trims,
            trim=lambda _, draft, limits: draft.keep(rank_tokens(draft)[0] >= limits.costs[2:3] - limits.costs[1:2]),
        ),
        *(COSTS, (False,), "expected none, or tokens worth 5.2"),
    ),
    "costs backwards": (CostsBackwards, COSTS, (False,), "a token; expected at most"),
    "first rows first": (FirstRowsFirst, "test_trims_alike", (), "in another order"),
    "depends on the rank": (DependsOnRank, "test_trims_alike", (), "of rank 1"),
    "needs a row": (
        before(lambda draft: [draft.survival().max()]),
        *("test_takes_an_empty_draft", ((0, 4),), "max"),
    ),
    "needs a token": (
        before(lambda draft: [draft.survival().max()]),
        *("test_takes_an_empty_draft", ((3, 0),), "max"),
    ),
    "cuts to nothing": (
        instead(
            Trims,
            trim=lambda _, draft, limits: draft.view(draft.batch_size, min(draft.draft_length, 3)),
        ),
        *("test_takes_an_empty_draft", ((0, 4),), r"shape \(0, 3\)"),
    ),
    "undecided": (
        instead(Trims, cuts_without_budget=lambda *_: None),
        *("test_says_when_it_cuts", (), "None; expected a bool"),
    ),
    "reads the budget": (ReadsTheBudget, "test_never_reads_back", (False,), "meta"),
    "reads verdicts": (
        instead(Trims, observe=lambda _, batch, draft, verdict: verdict.accepted.sum().item()),
        *("test_never_reads_back", (False,), "meta"),
    ),
    "edits the verdict": (
        instead(Trims, observe=lambda _, batch, draft, verdict: verdict.accepted.add_(1)),
        *(VERDICTS, (), "observe has changed verdict.accepted"),
    ),
    "learns from somebody": (
        instead(Trims, observe=lambda self, batch, draft, verdict: self.accepted.add_(verdict.accepted.max())),
        *(VERDICTS, (), "max"),
    ),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    half, clause, arguments, message = PLANTED[mistake]
    contract = contract_of(half) if issubclass(half, Planner) else contract_of(trims=half)
    with pytest.raises(Exception, match=message):
        getattr(contract(), clause)(*arguments)


def test_a_planner_may_have_a_thread_that_sleeps() -> None:
    thread = Thread(target=time.sleep, args=(0,))
    with ThreadPoolExecutor(2) as executor:
        with watch_for_waiting() as found:
            asleep = [executor.submit(time.sleep, 0) for _ in range(3)]
            thread.start()
            Event().wait(0)
        thread.join()
        assert [each.result() for each in asleep] == [None] * 3
        with watch_for_waiting():
            thread.join()
    assert not found


def test_a_planner_that_catches_everything_does_not_hide_that_it_waits() -> None:
    with watch_for_waiting() as found, contextlib.suppress(BaseException):
        current_thread().join()
    assert found == {"threading.Thread.join"}


def test_a_local_variable_does_not_hide_that_a_planner_sleeps() -> None:
    timeout = 0
    with watch_for_waiting() as found:
        sleep(timeout)
    assert found == {"time.sleep"}


def test_every_clause_has_a_planted_policy_and_a_docstring() -> None:
    assert {clause for _, clause, _, _ in PLANTED.values()} == clauses(PolicyContract)


def test_halves_that_do_not_learn_skip_what_is_about_learning() -> None:
    class Fixed(Planner):
        def __init__(self, context: PluginContext) -> None:
            pass

        def plan(self, stats: HostStats) -> StepPlan:
            return StepPlan(0)

    contract = contract_of(Fixed, lambda context: SurvivalTrimmer())()
    for clause in (contract.test_learns_from_reports, contract.test_learns_from_verdicts):
        with pytest.raises(pytest.skip.Exception):
            clause()


def test_documented_policy_satisfies_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "specplug_frugal"
    halves = code_block("class Frugal"), code_block("class Short")
    (tmp_path / f"{name}.py").write_text("\n".join(halves))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, name, None)  # so that it is forgotten when the test ends
    del sys.modules[name]
    registry = Registry()
    registry.add(importlib.import_module(name), Owner("frugal", name, "0.1.0"))
    assert not registry.load_errors

    namespace: dict[str, Any] = {}
    exec(code_block("class TestFrugal"), namespace)
    contract = namespace["TestFrugal"]()
    assert registry.get(PolicySpec, "frugal").factory == contract.spec.factory
    for clause, values in {(clause, values) for _, clause, values, _ in PLANTED.values()}:
        with contextlib.suppress(pytest.skip.Exception):  # its plans are not constant
            getattr(contract, clause)(*values)
    planner = contract.planner(EngineCaps(8))
    long = StepReport.build(0, 8, 1, [(8, 8)])
    before = planner.plan(HostStats(0, ())).draft_length
    for _ in range(20):
        planner.observe(long)
    assert planner.plan(HostStats(0, ())).draft_length > before
