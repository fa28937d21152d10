"""Contract tests for policies: inherit `PolicyContract`, set `spec` to your policy's, and run pytest.

    class TestNight(PolicyContract):
        spec = PolicySpec(name="night", factory="my_package:Plans", trimmer="my_package:Trims", summary="...")

Each test is one clause of the contract that `specplug.interfaces` states for `Planner` and `Trimmer`.  `PolicyHarness`
in `specplug.testing.policy_harness` documents the attributes to override and the input of the policies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import pytest
import torch

from specplug.testing.policy_harness import (
    JUMPS,
    PRICES,
    PROFILE,
    PolicyHarness,
    curve_of,
    list_nodes,
    stats_of,
    watch_for_waiting,
)
from specplug.testing.wrappers import watch
from specplug.types.plan import StepReport
from specplug.types.step import StepCost
from specplug.types.tensors import map_tensors


class PolicyContract(PolicyHarness):
    """The clauses that both halves of every policy must satisfy."""

    # -- the plan half -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("profile", [None, (), PROFILE[:1], PROFILE], ids=["", "none", "one", "many"])
    def test_plans_within_limits_and_alike(self, profile: Sequence[StepCost] | None) -> None:
        """Any plan is within the engine's limits and `longest_draft`, for which it captures graphs.

        Two instances given the same figures, and the same costs that the engine profiled, plan the same, as ranks do.
        """
        for name in self.engines:
            one, other = (self.plans(name, rank=rank, profile=profile) for rank in (0, 1))
            assert one == other, f"{self.who}: two instances plan differently on {name}; found {other}, expected {one}"

    def test_does_not_wait(self) -> None:
        """After its first call, `plan` neither sleeps nor waits for other threads, files, connections or processes."""
        for caps in self.engines.values():
            planner = self.planner(caps)
            planner.plan(stats_of(0))
            with watch_for_waiting() as found:
                planner.plan(stats_of(4, step=1))
            assert not found, f"{self.who}: plan has called {sorted(found)}; expected nothing that may block"

    def test_a_constant_plan_is_constant(self) -> None:
        """A planner with `is_constant` makes the same plan whatever the figures."""
        constant = [name for name, caps in self.engines.items() if self.planner(caps).is_constant]
        if not constant:
            pytest.skip("its plan half is constant on no engine")
        for name in constant:
            first, *others = self.plans(name)
            assert others == [first] * len(others), f"{self.who}: `is_constant`, but on {name} plans {others}"

    def test_learns_from_reports(self) -> None:
        """Reports are accepted, also for steps without requests, drafts or a known time; plans stay valid."""
        planners = {name: self.planner(caps) for name, caps in self.engines.items()}
        learning = {name: planner for name, planner in planners.items() if planner.learns}
        if not learning:
            pytest.skip("its plan half learns on no engine")
        for name, planner in learning.items():
            longest = self.engines[name].max_draft_length
            for step, counts in enumerate(([], [(0, 0)], [(longest, 0)], [(longest, longest)] * 3)):
                planner.observe(StepReport.build(step, longest, len(counts), counts))
                self.plan(name, planner, stats_of(2, step=step + 1))

    # -- the trim half -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("trees", [False, True])
    def test_keeps_a_part_within_the_budget(self, trees: bool) -> None:
        """Kept tokens are drafted ones, in their order and unchanged, as is `base_len`; all tokens before them stay.

        One trim half trims drafts of any number of rows in turn.
        """
        trimmer = self.trimmer()
        few = self.draft(trees=trees)
        fewer = map_tensors(few, lambda tensor: tensor[1:])
        many = map_tensors(few, lambda tensor: torch.cat([tensor, tensor]))
        for budget, draft in itertools.product(self.budgets, (few, fewer, many)):
            trimmed = self.trim_draft(draft, budget, trimmer=trimmer)
            count = int(trimmed.lengths.sum())
            assert count <= budget, f"{self.who}: kept {count} draft tokens; expected at most {budget}"
            found = f"base_len is {trimmed.base_len} after trim; expected {draft.base_len}"
            assert torch.equal(trimmed.base_len, draft.base_len), f"{self.who}: {found}"
            for row, (nodes, kept) in enumerate(zip(list_nodes(draft), list_nodes(trimmed), strict=True)):
                places = [nodes.index(node) for node in kept if node in nodes]
                assert len(places) == len(kept), (
                    f"{self.who}: row {row} has {kept} after trim; "
                    f"expected tokens, confidences, sources and parents of {nodes}"
                )
                assert places == sorted(places), f"{self.who}: kept places {places} of row {row}; expected their order"

    @pytest.mark.parametrize("trees", [False, True])
    def test_keeps_tokens_that_cost_nothing(self, trees: bool) -> None:
        """Some tokens are kept within a large budget; without any, all other clauses would hold trivially."""
        budget = max(self.budgets)
        kept = self.trim_draft(self.draft(trees=trees), budget).lengths.tolist()
        assert any(kept), f"{self.who}: kept no draft tokens within a budget of {budget}, at no costs; expected some"

    @pytest.mark.parametrize("trees", [False, True])
    def test_respects_the_costs(self, trees: bool) -> None:
        """What is kept is worth its cost, and each token what it adds; dearer tokens keep no more of any row."""
        for jump in JUMPS:
            lengths = None
            for price in PRICES:
                costs = curve_of(price, jump)
                trimmed = self.trim_draft(self.draft(trees=trees), max(self.budgets), costs)
                worth = trimmed.survival()[trimmed.mask()].tolist()
                due = jump + price * len(worth) if worth else 0.0
                assert sum(worth) >= due - 1e-2, (
                    f"{self.who}: kept tokens worth {sum(worth):.3f}; expected none, or tokens worth {due:.3f}"
                )
                cheap = [level for level in worth if level < price - 1e-3]
                assert not cheap, f"{self.who}: kept tokens that survive by {cheap}; expected none below {price}"
                kept = trimmed.lengths.tolist()
                more = [found for found, least in zip(kept, lengths or kept, strict=True) if found > least]
                assert not more, f"{self.who}: kept {kept} at {price} a token; expected at most {lengths}"
                lengths = kept

    def test_trims_alike(self) -> None:
        """The result depends neither on the order of rows nor on the rank, whose drafts have to agree."""
        draft = self.draft()
        turned = map_tensors(draft, lambda tensor: tensor.flip(0))
        for budget in self.budgets:
            expected = self.trim_draft(draft, budget).lengths.tolist()
            found = self.trim_draft(turned, budget).lengths.flip(0).tolist()
            assert found == expected, f"{self.who}: keeps {found} with the rows in another order; expected {expected}"
            found = self.trim_draft(draft, budget, trimmer=self.trimmer(rank=1)).lengths.tolist()
            assert found == expected, f"{self.who}: another instance, of rank 1, keeps {found}; expected {expected}"

    @pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
    def test_takes_an_empty_draft(self, shape: tuple[int, int]) -> None:
        """A draft may have no rows, or a length of 0."""
        trimmed = self.trim_draft(self.empty_draft(*shape), 2)
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
        draft = self.empty_draft(3, 4, trees=trees, device=device)
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
        empty = [self.empty_draft(*shape) for shape in ((0, 4), (3, 0), (3, 4))]
        for draft in (*empty, self.draft(), self.draft(trees=True)):
            batch, of_batch, verdict = self.verified(draft)
            action = partial(trimmer.observe, batch, of_batch, verdict)
            watch("observe", action, batch=batch, draft=of_batch, verdict=verdict)
            trimmer.trim(self.draft(), self.limits(self.draft(), 3)).validate()
