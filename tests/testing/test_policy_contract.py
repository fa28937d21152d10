"""The contract for policies catches what it is there to catch: for every clause, a policy that breaks it."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specplug.interfaces import Planner, PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import PolicySpec
from specplug.steps.trim import SurvivalTrimmer, rank_tokens
from specplug.testing.policy_contract import PolicyContract
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


# One clause broken by each of what follows.


class NeedsARequest(Plans):
    def draft_length(self, stats: HostStats) -> int:
        return 4 + stats.requests[0].length % 2


class ReturnsADraftLength(Plans):
    def plan(self, stats: HostStats) -> StepPlan:
        return 4  # type: ignore[return-value]


class TooWide(Plans):
    def draft_length(self, stats: HostStats) -> int:
        return 16


class Inconstant(Plans):
    is_constant = True

    def draft_length(self, stats: HostStats) -> int:
        return self.context.caps.fit_draft_length(len(stats.requests))


class Fractional(Plans):
    observe = Planner.observe

    def draft_length(self, stats: HostStats) -> int:
        return self.context.caps.max_draft_length / 2  # type: ignore[return-value]


class NegativeBudget(Plans):
    def plan(self, stats: HostStats) -> StepPlan:
        return replace(super().plan(stats), token_budget=256 - len(stats.requests))


class LongerThanStated(Plans):
    def draft_length(self, stats: HostStats) -> int:
        return 4

    def longest_draft(self, batch_size: int) -> int:
        return 4 if batch_size < 8 else 3


class CostsThatDescend(Plans):
    def plan(self, stats: HostStats) -> StepPlan:
        return replace(super().plan(stats), costs=(CostPoint(4, 1.0), CostPoint(2, 2.0)))


class Sleeps(Plans):
    def draft_length(self, stats: HostStats) -> int:
        time.sleep(0)
        return super().draft_length(stats)


class ReadsAFile(Plans):
    def draft_length(self, stats: HostStats) -> int:
        Path(__file__).read_bytes()
        return super().draft_length(stats)


class DependsOnTheInstance(Plans):
    instances = 0

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        DependsOnTheInstance.instances += 1
        self.number = self.instances

    def draft_length(self, stats: HostStats) -> int:
        return self.context.caps.fit_draft_length(self.number % 2)


class DividesByRequests(Plans):
    def observe(self, report: StepReport) -> None:
        self.accepted = report.accepted / report.requests


class NeedsATime(Plans):
    def observe(self, report: StepReport) -> None:
        if report.requests:
            self.accepted = report.cost.seconds  # type: ignore[union-attr]


class NeedsACost(Plans):
    def calibrate(self, costs: Sequence[StepCost]) -> None:
        self.accepted = min(cost.seconds for cost in costs)


class CalibratedTooLong(Plans):
    def calibrate(self, costs: Sequence[StepCost]) -> None:
        self.context = replace(self.context, caps=EngineCaps(8 + len(costs)))
        self.accepted = 9.0 * len(costs)


class OtherTokens(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        draft.token_ids.masked_fill_(draft.mask(), 63)
        return super().trim(draft, limits)


class OtherConfidences(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        draft.confidence.mul_(0.5)
        return super().trim(draft, limits)


class KeepsEnds(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        place = torch.arange(draft.draft_length)
        return draft.keep(place >= 1)


class TearsTrees(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        if draft.parents is not None:
            draft.parents.fill_(-1)
        return super().trim(draft, limits)


class OneTooMany(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return super().trim(draft, replace(limits, token_budget=limits.token_budget + 1))


class BudgetPerRow(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return draft.keep(torch.arange(draft.draft_length) < limits.token_budget)


class IgnoresTheCosts(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return draft.keep(rank_tokens(draft)[1] < limits.token_budget)


class IgnoresTheJump(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        price = limits.costs[2:3] - limits.costs[1:2]
        return draft.keep(rank_tokens(draft)[0] >= price)


class CostsBackwards(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        levels, price = rank_tokens(draft)[0], limits.costs[1:2]
        return draft.keep((levels >= price) & (levels >= 3700 - price))


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


class NeedsARow(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        draft.survival().max()
        return super().trim(draft, limits)


class CutsToNothing(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return draft.view(draft.batch_size, min(draft.draft_length, 3))


class Undecided(Trims):
    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        return None  # type: ignore[return-value]


class ReadsTheBudget(Trims):
    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return (
            super().trim(draft, limits)
            if int(limits.token_budget)
            else draft.view(draft.batch_size, draft.draft_length)
        )


class ReadsVerdicts(Trims):
    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        self.rate = verdict.accepted.sum().item()


class EditsTheVerdict(Trims):
    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        verdict.accepted.add_(1)


class LearnsFromSomebody(Trims):
    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        best: Tensor = verdict.accepted.max()
        self.accepted += best


PLANTED = [
    (NeedsARequest, "test_plans_without_figures", (), "index out of range"),
    (ReturnsADraftLength, "test_plans_without_figures", (), "expected a StepPlan"),
    (TooWide, "test_plans_within_the_engines_limits", (), "length 16"),
    (Fractional, "test_plans_within_the_engines_limits", (), r"length 4\.0"),
    (NegativeBudget, "test_plans_within_the_engines_limits", (), "token_budget -256"),
    (CostsThatDescend, "test_plans_within_the_engines_limits", (), "no curve"),
    (LongerThanStated, "test_plans_no_longer_drafts_than_stated", (), "draft length 4 for 8 requests"),
    (Sleeps, "test_does_not_wait", (), "time.sleep"),
    (ReadsAFile, "test_does_not_wait", (), "open"),
    (DependsOnTheInstance, "test_plans_alike_for_equal_figures", (), "plan differently"),
    (Inconstant, "test_a_constant_plan_is_constant", (), "`is_constant`, but on"),
    (DividesByRequests, "test_learns_from_reports", (), "division by zero"),
    (NeedsATime, "test_learns_from_reports", (), "seconds"),
    (NeedsACost, "test_starts_from_profiled_costs", (), "empty"),
    (CalibratedTooLong, "test_starts_from_profiled_costs", (), "after 1 profiled"),
    (OtherTokens, "test_keeps_what_was_drafted", (False,), "expected tokens and confidences"),
    (OtherConfidences, "test_keeps_what_was_drafted", (True,), "expected tokens and confidences"),
    (KeepsEnds, "test_keeps_what_was_drafted", (False,), "expected a beginning"),
    (TearsTrees, "test_keeps_ancestors", (), "hang elsewhere"),
    (OneTooMany, "test_respects_the_budget", (False,), "expected at most 0"),
    (BudgetPerRow, "test_respects_the_budget", (True,), "expected at most 1"),
    (IgnoresTheCosts, "test_respects_the_costs", (False,), "below 0.2"),
    (IgnoresTheJump, "test_respects_the_costs", (False,), "expected none, or tokens worth 5.2"),
    (CostsBackwards, "test_respects_the_costs", (False,), "a token; expected at most"),
    (FirstRowsFirst, "test_does_not_depend_on_the_order_of_rows", (), "in another order"),
    (DependsOnRank, "test_trims_alike_on_all_ranks", (), "of rank 1"),
    (NeedsARow, "test_takes_an_empty_draft", ((0, 4),), "max"),
    (NeedsARow, "test_takes_an_empty_draft", ((3, 0),), "max"),
    (CutsToNothing, "test_takes_an_empty_draft", ((0, 4),), r"shape \(0, 3\)"),
    (Undecided, "test_says_when_it_cuts", (), "None; expected a bool"),
    (ReadsTheBudget, "test_never_reads_back", (False,), "meta"),
    (ReadsVerdicts, "test_never_reads_back", (False,), "meta"),
    (EditsTheVerdict, "test_learns_from_verdicts", (), "observe has changed verdict.accepted"),
    (LearnsFromSomebody, "test_learns_from_verdicts", (), "max"),
]


@pytest.mark.parametrize(
    ("half", "clause", "arguments", "message"),
    PLANTED,
    ids=[f"{half.__name__}-{clause}" for half, clause, _, _ in PLANTED],
)
def test_planted_policy_is_caught(half: type, clause: str, arguments: tuple[Any, ...], message: str) -> None:
    contract = contract_of(half) if issubclass(half, Planner) else contract_of(trims=half)
    with pytest.raises(Exception, match=message):
        getattr(contract(), clause)(*arguments)


def test_every_clause_has_a_planted_policy_and_a_docstring() -> None:
    assert {clause for _, clause, _, _ in PLANTED} == clauses(PolicyContract)


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
    for clause, values in {(clause, values) for _, clause, values, _ in PLANTED}:
        if clause != "test_trims_alike_in_compiled_code":  # its trim half has no C function
            getattr(contract, clause)(*values)
    planner = contract.planner(EngineCaps(8))
    long = StepReport.build(0, 8, 1, [(8, 8)])
    before = planner.plan(HostStats(0, ())).draft_length
    for _ in range(20):
        planner.observe(long)
    assert planner.plan(HostStats(0, ())).draft_length > before
