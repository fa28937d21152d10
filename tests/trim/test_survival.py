"""Which tokens are admitted: the plain rule, the tensor form and the compiled form agree, to the last tie."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import types

from specplug.testing.wrappers import kept_by
from specplug.trim import SurvivalTrimmer, priced_budget, survival_on_cpu
from specplug.types.draft import Draft
from specplug.types.paths import ROOT
from specplug.types.plan import Price, TrimLimits
from tests.match.test_host_step import code_of, declared_in, ways_to_python
from tests.trim.tools import Case, bits, random_case


@pytest.fixture(scope="module")
def trimmer():
    built = SurvivalTrimmer()
    return built, built.host_trim()


def admitted_by_heap(case: Case) -> torch.Tensor:
    """From the tokens whose parents are in, take the one of highest survival, while it is worth its price.

    None is taken if all of them together are expected to yield less than their prices and the entry.
    """
    draft, heap, gain = case.draft, [], 0.0
    kept = torch.zeros(draft.token_ids.shape, dtype=torch.bool)

    def offer(row: int, parent: int, reached: np.float32) -> None:
        for place, level in enumerate(draft.confidence[row, : int(draft.lengths[row])].numpy()):
            above = place - 1 if draft.parents is None else int(draft.parents[row, place])
            if above == parent:
                heapq.heappush(heap, (-(level * reached), place, row))

    for row in range(draft.batch_size):
        offer(row, ROOT, np.float32(1.0))
    for count in range(case.budget):
        if not heap:
            break
        survival, place, row = heapq.heappop(heap)
        due = [price.survival for price in case.prices if count >= price.after]
        if any(-survival < np.float32(price) for price in due):
            break
        kept[row, place] = True
        gain += float(-survival) - max(due, default=0.0)
        offer(row, place, -survival)
    return kept if not case.entry or gain >= case.entry else torch.zeros_like(kept)


@pytest.mark.parametrize("trees", [False, True])
@settings(max_examples=120)
@given(random=st.randoms(use_true_random=False))
def test_the_tokens_are_those_of_the_heap(trimmer, trees, random):
    plain, step = trimmer
    case = random_case(random, trees=trees)
    expected = admitted_by_heap(case)
    assert torch.equal(kept_by(step, case.draft, case.limits), expected)
    trimmed = plain.trim(case.draft, case.limits)
    trimmed.validate()
    assert bits(case.draft.keep(expected)) == bits(trimmed)
    unlimited = admitted_by_heap(replace(case, budget=case.draft.token_ids.numel()))
    survival = case.draft.survival()[case.draft.mask()].numpy()
    assert priced_budget(survival, case.prices, case.entry) == int(unlimited.sum())


@pytest.mark.parametrize(("batch_size", "draft_length"), [(600, 8), (64, 70), (3, 300)])
def test_large_batches(trimmer, batch_size, draft_length):
    plain, step = trimmer
    generator = torch.Generator().manual_seed(batch_size)
    draft = Draft.allocate(batch_size, draft_length)
    draft.lengths[:] = torch.randint(0, draft_length + 1, (batch_size,), generator=generator)
    draft.confidence[:] = torch.rand(batch_size, draft_length, generator=generator) ** 0.1
    for budget in (0, 1, 999, batch_size * draft_length):
        limits = TrimLimits.build(budget, torch.ones(batch_size, dtype=torch.bool), (Price(0.01), Price(0.2, 40)))
        assert bits(draft.keep(kept_by(step, draft, limits))) == bits(plain.trim(draft, limits))


def test_neither_the_kernel_nor_the_c_function_has_a_way_to_python():
    code = code_of(survival_on_cpu.admit.py_func, types.int64)
    assert len(code) > 1_000
    assert ways_to_python(code) == []
    entry = numba.cfunc("int32(int64)", error_model="numpy")(survival_on_cpu._entry)
    assert ways_to_python(declared_in(entry)) == []
