"""The compiled admission keeps the tokens that the sorted ranking admits, to the last tie."""

from __future__ import annotations

import re
from dataclasses import replace

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core import types

from specplug.testing.wrappers import kept_by
from specplug.trim import SurvivalTrimmer, admitted, priced_budget, rank_tokens, survival_on_cpu
from specplug.types.draft import Draft
from specplug.types.plan import Price
from tests.match.test_host_step import PYTHON, RAISES, code_of
from tests.trim.tools import Case, bits, random_case

RANDOM = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def trimmer():
    built = SurvivalTrimmer()
    return built, built.host_trim()


def admitted_one_by_one(case: Case) -> torch.Tensor:
    """Admit tokens in order, each if it is within the budget and survives by the prices of those before it.

    None is admitted if all of them together are expected to yield less than their prices and the entry.
    """
    survival, rank = rank_tokens(case.draft)
    kept = torch.zeros_like(case.draft.mask())
    gain = 0.0
    places = {int(rank[row, place]): (row, place) for row, place in case.draft.mask().nonzero().tolist()}
    for count in range(min(len(places), case.budget)):
        level = survival[places[count]]
        if any(level < torch.tensor(price.survival) for price in case.prices if count >= price.after):
            break
        kept[places[count]] = True
        gain += float(level) - max([price.survival for price in case.prices if count >= price.after], default=0.0)
    return kept if not case.entry or gain >= case.entry else torch.zeros_like(kept)


@pytest.mark.parametrize("trees", [False, True])
@settings(max_examples=300, deadline=None)
@given(random=RANDOM)
def test_the_tokens_are_those_of_the_ranking(trimmer, trees, random):
    plain, step = trimmer
    case = random_case(random, trees=trees)
    expected = admitted_one_by_one(case)
    found = kept_by(step, case.draft, case.limits)
    assert torch.equal(found, expected)
    assert bits(case.draft.keep(found)) == bits(plain.trim(case.draft, case.limits))


@pytest.mark.parametrize(("batch_size", "draft_length"), [(600, 8), (64, 70), (3, 300)])
def test_large_batches(trimmer, batch_size, draft_length):
    plain, step = trimmer
    generator = torch.Generator().manual_seed(batch_size)
    draft = Draft.allocate(batch_size, draft_length)
    draft.lengths[:] = torch.randint(0, draft_length + 1, (batch_size,), generator=generator)
    draft.confidence[:] = torch.rand(batch_size, draft_length, generator=generator) ** 0.1
    for budget in (0, 1, 999, batch_size * draft_length):
        case = Case(draft, budget, (Price(0.01), Price(0.2, 40)), torch.ones(batch_size, dtype=torch.bool))
        assert bits(draft.keep(kept_by(step, case.draft, case.limits))) == bits(plain.trim(draft, case.limits))


@settings(max_examples=200, deadline=None)
@given(random=RANDOM)
def test_survival_is_multiplied_from_left_to_right_and_never_rises(random):
    draft = random_case(random, trees=False).draft
    survival = draft.survival()
    for row, count in enumerate(draft.lengths.tolist()):
        reached = torch.ones(())
        for place in range(count):
            reached = reached * draft.confidence[row, place]
            assert survival[row, place] == reached
    assert bool((survival[:, 1:] <= survival[:, :-1]).all())


@settings(max_examples=200, deadline=None)
@given(random=RANDOM, trees=st.booleans())
def test_prices_amount_to_a_budget_of_as_many_tokens_as_are_kept_without_one(random, trees):
    case = random_case(random, trees=trees)
    draft, unlimited = case.draft, replace(case, budget=case.draft.token_ids.numel())
    found = priced_budget(draft.survival()[draft.mask()].numpy(), case.prices, case.entry)
    assert found == int(admitted(draft, unlimited.limits).sum())


def test_without_prices_all_are_worth_it():
    assert priced_budget(torch.rand(3, 4).numpy(), ()) == 12


def test_the_kernel_has_no_way_to_python():
    code = code_of(survival_on_cpu.admit.py_func, types.int64)
    assert len(code) > 1_000
    assert [word for word in (*PYTHON, RAISES) if word in code] == []


def test_the_c_function_has_no_way_to_python():
    code = numba.cfunc("int32(int64)", error_model="numpy")(survival_on_cpu._entry)
    found = re.findall(r"^(?:declare|define) [^\n]*?@\"?([\w.]+)", code.inspect_llvm(), re.MULTILINE)
    assert [word for word in (*PYTHON, RAISES) for name in found if word in name] == []
