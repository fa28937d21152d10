"""Which tokens are admitted: trying all numbers, the form on tensors and that on arrays agree, to the last tie."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.trim import SurvivalTrimmer, admitted, best_count
from specplug.types.paths import ROOT
from specplug.types.plan import TrimLimits, first_rise
from specplug.types.step import CostPoint, Draft
from tests.steps.trim_tools import Case, bits, random_case


def admitted_by_trial(case: Case) -> torch.Tensor:
    """Admit tokens whose parents are in, the likeliest first, and keep the first n of the n with the greatest gain."""
    draft, heap = case.draft, []
    order, gains = [], [Fraction(0)]

    def offer(row: int, parent: int, reached: np.float32) -> None:
        for place, level in enumerate(draft.confidence[row, : int(draft.lengths[row])].numpy()):
            above = place - 1 if draft.parents is None else int(draft.parents[row, place])
            if above == parent:
                survival = level * reached
                heapq.heappush(heap, (-math.floor(Fraction(float(survival)) * 4096), place, row, survival))

    def cost(count: int) -> int:
        points = [(0, 0.0)] if not case.costs else case.costs
        return round(4096 * float(np.interp(count, *zip(*points, strict=True))))

    for row in range(draft.batch_size):
        offer(row, ROOT, np.float32(1.0))
    while heap and len(order) < case.budget:
        level, place, row, survival = heapq.heappop(heap)
        order.append((row, place))
        gains.append(gains[-1] - level - cost(len(order)) + cost(len(order) - 1))
        offer(row, place, survival)
    kept = torch.zeros(draft.token_ids.shape, dtype=torch.bool)
    for row, place in order[: gains.index(max(gains))]:
        kept[row, place] = True
    return kept


@pytest.mark.parametrize("trees", [False, True])
@settings(max_examples=200)
@given(random=st.randoms(use_true_random=False))
def test_the_tokens_are_those_of_the_best_number_tried(trees, random):
    case = random_case(random, trees=trees)
    expected = admitted_by_trial(case)
    trimmed = SurvivalTrimmer().trim(case.draft, case.limits)
    trimmed.validate()
    assert torch.equal(admitted(case.draft, case.limits), expected)
    assert bits(case.draft.keep(expected)) == bits(trimmed)
    survival = case.draft.survival()[case.draft.mask()].numpy()
    assert best_count(survival, case.costs, case.budget) == int(expected.sum())
    unlimited = admitted_by_trial(replace(case, budget=case.draft.token_ids.numel()))
    assert best_count(survival, case.costs) == int(unlimited.sum())


@pytest.mark.parametrize(("batch_size", "draft_length"), [(600, 8), (64, 70), (3, 300)])
def test_large_batches(batch_size, draft_length):
    generator = torch.Generator().manual_seed(batch_size)
    draft = Draft.allocate(batch_size, draft_length)
    draft.lengths[:] = torch.randint(0, draft_length + 1, (batch_size,), generator=generator)
    draft.confidence[:] = torch.rand(batch_size, draft_length, generator=generator) ** 0.1
    costs = (CostPoint(40, 1.0), CostPoint(41, 3.0), CostPoint(1000, 300.0))
    for budget in (0, 1, 999, batch_size * draft_length):
        limits = TrimLimits.build(budget, torch.ones(batch_size, dtype=torch.bool), costs)
        assert bits(draft.keep(admitted(draft, limits))) == bits(SurvivalTrimmer().trim(draft, limits))


@settings(max_examples=200)
@given(random=st.randoms(use_true_random=False))
def test_where_no_token_costs_anything_all_but_the_worthless_are_kept(random):
    """This lets a stage leave the trim half out."""
    case = random_case(random, trees=random.random() < 0.5)
    places = case.draft.token_ids.numel()
    limits = replace(case.limits, token_budget=torch.tensor(places))
    levels, kept = (case.draft.survival() * 4096).int(), admitted(case.draft, limits)
    if first_rise(case.costs) >= places:
        assert kept[levels > 0].all()  # others only where a falling curve pays for them
