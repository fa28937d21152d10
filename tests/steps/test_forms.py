"""The rules of a step's drafts, each in all its forms: loops in plain Python, operations on tensors and on arrays.

The kernels' form of the same is held to them in `tests/engines/kernels`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.draft_report import UNIT, survival_sums
from specplug.steps.sanitize import sanitize_arrays, sanitize_tensors
from specplug.steps.trim import SurvivalTrimmer, admitted, best_count
from specplug.types.paths import ROOT
from specplug.types.plan import TrimLimits, first_rise
from specplug.types.step import CostPoint, Draft, Outcome, until_stop
from tests.steps.trim_tools import Case, bits, random_case

VOCAB = 5
NUMBERS = (-(2**31), -2, -1, 0, 1, 2, 3, VOCAB - 1, VOCAB, 2**31 - 1)
LEVELS = (float("nan"), float("inf"), -float("inf"), -0.5, 0.0, 1e-40, 0.5, 1.0, 1.5)


def admitted_by_trial(case: Case) -> torch.Tensor:
    """Admit tokens whose parents are in, the likeliest first, and keep the first n of the n with the greatest gain."""
    draft = case.draft
    heap = []
    order = []
    gains = [Fraction(0)]

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
        limits = TrimLimits.build(budget, costs)
        assert bits(draft.keep(admitted(draft, limits))) == bits(SurvivalTrimmer().trim(draft, limits))


@settings(max_examples=200)
@given(random=st.randoms(use_true_random=False))
def test_where_no_token_costs_anything_all_but_the_worthless_are_kept(random):
    """This lets a stage leave the trim half out."""
    case = random_case(random, trees=random.random() < 0.5)
    places = case.draft.token_ids.numel()
    limits = replace(case.limits, token_budget=torch.tensor(places))
    levels = (case.draft.survival() * 4096).int()
    kept = admitted(case.draft, limits)
    if first_rise(case.costs) >= places:
        assert kept[levels > 0].all()  # others only where a falling curve pays for them


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_what_drafts_are_expected_to_yield_is_the_sum_of_a_loop_over_tokens(seed, trees):
    random = Random(seed)
    draft = random_case(random, trees=trees, least=2, most=4).draft
    levels = [random.randint(8, 16) / 16 for _ in range(draft.confidence.numel())]  # products of these are exact
    draft.confidence[:] = torch.tensor(levels).view(draft.confidence.shape)
    counted = torch.tensor([random.random() < 0.5 for _ in range(draft.batch_size)], dtype=torch.bool)
    sums = [int(counted.sum()), *[0] * draft.draft_length]
    for row in counted.nonzero()[:, 0].tolist():
        path: list[Fraction] = []
        for k, level in enumerate(draft.confidence[row, : int(draft.lengths[row])].tolist()):
            parent = k - 1 if draft.parents is None else int(draft.parents[row, k])
            path.append(Fraction(level) * (path[parent] if parent >= 0 else 1))
            sums[k + 1] += int(path[k] * UNIT + Fraction(1, 2))
    assert survival_sums(draft, counted).tolist() == sums


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=200)
def test_both_forms_sanitize_alike(random, trees):
    rows = random.randint(0, 4)
    columns = random.randint(1, 6)
    drafts = [Draft.allocate(rows + 1, columns + 2, trees=trees, sources=("a", "b")) for _ in range(2)]
    values = range(2) if random.random() < 0.5 else NUMBERS
    for tensors in zip(*([it.token_ids, it.source, it.lengths, it.parents] for it in drafts), strict=True):
        if tensors[0] is not None:
            drawn = [random.choice(values) for _ in range(tensors[0].numel())]
            for tensor in tensors:
                tensor.copy_(torch.tensor(drawn, dtype=torch.int32).view(tensor.shape))
    levels = torch.tensor([random.choice(LEVELS) for _ in range(drafts[0].confidence.numel())])
    limits = torch.tensor([random.randint(0, columns) for _ in range(rows)], dtype=torch.int32)
    for draft, form in zip(drafts, (sanitize_tensors, sanitize_arrays), strict=True):
        draft.confidence.copy_(levels.view(draft.confidence.shape))
        form(draft.view(rows, columns), limits, VOCAB)
        draft.confidence.add_(0.0)  # -0 equals 0
    assert bits(drafts[0]) == bits(drafts[1])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 5)), min_size=1))
def test_drafts_count_alike_up_to_a_stop_on_the_host_and_in_tensors(rows):
    """The kernel's form is held to that in tensors by `tests/steps/oracle.py`."""
    rows = [(verified + accepted, accepted, min(after_stop, accepted)) for verified, accepted, after_stop in rows]
    verified, accepted, after_stop = torch.tensor(rows, dtype=torch.int32).unbind(1)
    found = torch.stack(Outcome(verified, accepted, accepted + 1, after_stop=after_stop).until_stop(), 1)
    expected = [until_stop(*row[:2], row[1] + 1 - row[2]) for row in rows]
    assert list(map(tuple, found.tolist())) == expected
