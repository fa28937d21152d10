"""Contract tests for policies: inherit `PolicyContract`, set `spec` to your policy's, and run pytest.

    class TestNight(PolicyContract):
        spec = PolicySpec(name="night", factory="my_package:Plans", trimmer="my_package:Trims", summary="...")

Each test is one clause of the contract that `specplug.interfaces` states for `Planner` and `Trimmer`.  `PolicyHarness`
in `specplug.testing.policy_harness` documents the attributes to override and the input of the policies.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

from specplug.steps.plan_stage import checked_costs
from specplug.testing.policy_harness import (
    IDLE,
    JUMPS,
    PRICES,
    PROFILE,
    PolicyHarness,
    curve_of,
    stats_of,
    watch_for_waiting,
)
from specplug.testing.wrappers import watch
from specplug.types.plan import StepReport
from specplug.types.step import StepPlan
from specplug.types.tensors import map_tensors


class PolicyContract(PolicyHarness):
    """The clauses that both halves of every policy must satisfy."""

    # -- the plan half -------------------------------------------------------------------------------------------

    def test_plans_without_figures(self) -> None:
        """The first step, which has no decoding requests and no history, gets a plan."""
        for name, caps in self.engines.items():
            plan = self.planner(caps).plan(IDLE)
            assert isinstance(plan, StepPlan), f"{self.who}: planned {plan!r} on {name}; expected a StepPlan"

    def test_plans_within_the_engines_limits(self) -> None:
        """Draft length, budget, caps and costs are within the engine's limits for any number of requests."""
        for name, caps in self.engines.items():
            for plan in self.plans(caps):
                in_range = isinstance(plan.draft_length, int) and 0 <= plan.draft_length <= caps.max_draft_length
                assert in_range, (
                    f"{self.who}: draft length {plan.draft_length!r} on {name}; "
                    f"expected an int in [0, {caps.max_draft_length}]"
                )
                budget = plan.token_budget
                assert budget is None or (isinstance(budget, int) and budget >= 0), (
                    f"{self.who}: token_budget {budget!r} on {name}; expected None or an int >= 0"
                )
                checked_costs(plan.costs)

    def test_plans_no_longer_drafts_than_stated(self) -> None:
        """No plan for B requests is longer than `longest_draft(B)`, for which engines capture graphs."""
        for name, caps in self.engines.items():
            planner = self.planner(caps)
            for step, batch_size in enumerate((1, 2, 3, 7, 8, 33, 256)):
                most = planner.longest_draft(batch_size)
                found = planner.plan(stats_of(batch_size, step=step)).draft_length
                assert most is None or found <= most, (
                    f"{self.who}: draft length {found} for {batch_size} requests on {name}; expected at most {most}"
                )

    def test_does_not_wait(self) -> None:
        """After its first call, `plan` neither sleeps nor opens files or connections nor starts processes."""
        for caps in self.engines.values():
            planner = self.planner(caps)
            planner.plan(IDLE)
            with watch_for_waiting() as found:
                planner.plan(stats_of(4, step=1))
            assert not found, f"{self.who}: plan has called {sorted(found)}; expected nothing that may block"

    def test_plans_alike_for_equal_figures(self) -> None:
        """Two instances given the same figures make the same plans, since ranks plan independently."""
        for name, caps in self.engines.items():
            one = self.plans(caps)
            other = self.plans(caps, rank=1)
            assert one == other, f"{self.who}: two instances plan differently on {name}; found {other}, expected {one}"

    def test_a_constant_plan_is_constant(self) -> None:
        """A planner with `is_constant` makes the same plan whatever the figures."""
        constant = {name: caps for name, caps in self.engines.items() if self.planner(caps).is_constant}
        if not constant:
            pytest.skip("its plan half is constant on no engine")
        for name, caps in constant.items():
            plans = self.plans(caps)
            assert all(plan == plans[0] for plan in plans), f"{self.who}: `is_constant`, but on {name} plans {plans}"

    def test_learns_from_reports(self) -> None:
        """Reports are accepted, also for steps without requests, drafts or a known time; plans stay valid."""
        learning = [(caps, planner) for caps in self.engines.values() if (planner := self.planner(caps)).learns]
        if not learning:
            pytest.skip("its plan half learns on no engine")
        for caps, planner in learning:
            for step, fates in enumerate(
                ([], [(0, 0)], [(caps.max_draft_length, 0)], [(caps.max_draft_length, caps.max_draft_length)] * 3)
            ):
                planner.observe(StepReport.build(step, caps.max_draft_length, len(fates), fates))
                plan = planner.plan(stats_of(2, step=step + 1))
                assert 0 <= plan.draft_length <= caps.max_draft_length, (
                    f"{self.who}: draft length {plan.draft_length} after {fates}"
                )

    def test_starts_from_profiled_costs(self) -> None:
        """Costs that the engine profiled are accepted, none or many of them; two instances then plan the same."""
        for name, caps in self.engines.items():
            for profile in ((), PROFILE[:1], PROFILE):
                one = self.plans(caps, profile=profile)
                other = self.plans(caps, rank=1, profile=profile)
                assert one == other, (
                    f"{self.who}: two instances plan differently on {name} after {len(profile)} profiled costs; "
                    f"found {other}, expected {one}"
                )
                longest = max(plan.draft_length for plan in one)
                assert longest <= caps.max_draft_length, (
                    f"{self.who}: draft length {longest} on {name} after {len(profile)} profiled costs; "
                    f"expected at most {caps.max_draft_length}"
                )

    # -- the trim half -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("trees", [False, True])
    def test_keeps_what_was_drafted(self, trees: bool) -> None:
        """Kept tokens are drafted tokens in their order, with their confidences; of a chain, a prefix is kept."""
        for budget in self.budgets:
            draft = self.draft(trees=trees)
            before = self.nodes(draft)
            after = self.nodes(self.trimmed(draft, budget))
            for row, (all_nodes, kept) in enumerate(zip(before, after, strict=True)):
                places = [all_nodes.index(node) for node in kept if node in all_nodes]
                assert len(places) == len(kept), (
                    f"{self.who}: row {row} has {kept} after trim; expected tokens and confidences among {all_nodes}"
                )
                in_order = places == (sorted(places) if trees else list(range(len(kept))))
                assert in_order, f"{self.who}: kept places {places} of row {row}; expected a beginning, in order"

    def test_keeps_ancestors(self) -> None:
        """Every kept node of a tree keeps its parent."""
        for budget in self.budgets:
            draft = self.draft(trees=True)
            before = self.parents(draft)
            after = self.parents(self.trimmed(draft, budget))
            for row, (above, kept) in enumerate(zip(before, after, strict=True)):
                moved = {node: parent for node, parent in kept.items() if parent != above.get(node, parent)}
                assert not moved, f"{self.who}: in row {row} nodes hang elsewhere: found {moved}, expected {above}"

    @pytest.mark.parametrize("trees", [False, True])
    def test_respects_the_budget(self, trees: bool) -> None:
        """The batch keeps no more tokens than its budget, which may be 0."""
        for budget in self.budgets:
            kept = int(self.trimmed(self.draft(trees=trees), budget).lengths.sum())
            assert kept <= budget, f"{self.who}: kept {kept} draft tokens; expected at most {budget}"

    @pytest.mark.parametrize("trees", [False, True])
    def test_respects_the_costs(self, trees: bool) -> None:
        """What is kept is worth its cost, and each token what it adds; dearer tokens keep no more of any row."""
        for jump in JUMPS:
            lengths = None
            for price in PRICES:
                costs = curve_of(price, jump)
                trimmed = self.trimmed(self.draft(trees=trees), max(self.budgets), costs)
                worth = trimmed.survival()[trimmed.mask()].tolist()
                due = jump + price * len(worth) if worth else 0.0
                assert sum(worth) >= due - 1e-2, (
                    f"{self.who}: kept tokens worth {sum(worth):.3f}; expected none, or tokens worth {due:.3f}"
                )
                cheap = [level for level in worth if level < price - 1e-3]
                assert not cheap, f"{self.who}: kept tokens that survive by {cheap}; expected none below {price}"
                more = lengths is not None and bool((trimmed.lengths > lengths).any())
                assert not more, (
                    f"{self.who}: kept {trimmed.lengths.tolist()} at {price} a token; expected at most {lengths}"
                )
                lengths = trimmed.lengths

    def test_does_not_depend_on_the_order_of_rows(self) -> None:
        """The result does not depend on the order of the rows, if no two tokens are equally likely."""
        for budget in self.budgets:
            draft = self.draft()
            order = torch.arange(draft.batch_size).flip(0)
            turned = map_tensors(draft, lambda tensor: tensor[order])  # noqa: B023 - called at once
            expected = self.trimmed(draft, budget).lengths[order]
            found = self.trimmed(turned, budget).lengths
            assert torch.equal(expected, found), (
                f"{self.who}: keeps {found.tolist()} with the rows in another order; expected {expected.tolist()}"
            )

    def test_trims_alike_on_all_ranks(self) -> None:
        """Two instances trim the same; differing drafts on ranks corrupt the text silently."""
        for budget in self.budgets:
            one = self.trimmed(self.draft(), budget)
            other = self.trimmed(self.draft(), budget, rank=1)
            found = other.lengths.tolist()
            expected = one.lengths.tolist()
            assert found == expected, f"{self.who}: another instance, of rank 1, keeps {found}; expected {expected}"

    @pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
    def test_takes_an_empty_draft(self, shape: tuple[int, int]) -> None:
        """A draft may have no rows, or a length of 0."""
        trimmed = self.trimmed(self.empty(*shape), 2)
        found = (trimmed.batch_size, trimmed.draft_length)
        assert found == shape, f"{self.who}: an empty draft of shape {shape} has shape {found} after trim"

    def test_says_when_it_cuts(self) -> None:
        """`cuts_without_budget` returns a bool for any batch."""
        for caps in self.engines.values():
            for batch_size, draft_length in ((0, 0), (1, caps.max_draft_length), (512, caps.max_draft_length)):
                answer = self.trimmer(caps).cuts_without_budget(batch_size, draft_length)
                assert isinstance(answer, bool), f"{self.who}: cuts_without_budget gave {answer!r}; expected a bool"

    @pytest.mark.parametrize("trees", [False, True])
    def test_never_reads_back(self, trees: bool) -> None:
        """Both `trim` and `observe` run on the meta device, where tensors have no values."""
        device = torch.device("meta")
        draft = self.empty(3, 4, trees=trees, device=device)
        trimmer = self.trimmer(device=device)
        trimmed = trimmer.trim(draft, self.limits(draft, 5, curve_of(0.1)))
        trimmed.validate()
        assert trimmed.device == device, f"{self.who}: trim moved the draft to {trimmed.device}"
        if trimmer.learns:
            trimmer.observe(*self.verified(draft))

    def test_learns_from_verdicts(self) -> None:
        """Verdicts are accepted, also on empty drafts and batches, and the arguments stay unchanged."""
        trimmer = self.trimmer()
        if not trimmer.learns:
            pytest.skip("its trim half does not learn")
        for draft in (self.empty(0, 4), self.empty(3, 0), self.empty(3, 4), self.draft(), self.draft(trees=True)):
            batch, of_batch, verdict = self.verified(draft)
            action = partial(trimmer.observe, batch, of_batch, verdict)
            watch("observe", action, batch=batch, draft=of_batch, verdict=verdict)
            self.trimmed(self.draft(), 3, trimmer=trimmer)
