"""The kernel of SurvivalTrimmer: equal to its reference in Triton's interpreter, compiled for GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps import trim as survival
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.caps import Distribution
from specplug.types.plan import TrimLimits
from specplug.types.step import Draft
from tests.engines.interpreted import imported_anew
from tests.steps.transfers import view_of
from tests.steps.trim_tools import bits, random_case

NAME = "specplug.steps.kernels.trim_kernel"


@pytest.fixture(scope="module")
def kernels():
    with imported_anew(NAME, interpreted=True) as module:
        yield module


def reference(draft: Draft, limits: TrimLimits) -> Draft:
    """Return what the operations on tensors keep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survival, "_kernels_for", lambda device: None)
        return SurvivalTrimmer().trim(draft, limits)


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_kernel_keeps_what_the_reference_keeps(kernels, random):
    case = random_case(random, trees=False)
    names = ("token_ids", "confidence", "source", "lengths")
    draft = replace(case.draft, **{name: view_of(random, getattr(case.draft, name)) for name in names})
    limits = case.limits
    limits = replace(limits, costs=view_of(random, limits.costs))
    expected = reference(case.draft, case.limits)
    before = bits(draft)
    found = kernels.trim(draft, limits)
    found.validate()
    assert bits(found) == bits(expected)
    assert bits(draft) == before


def test_the_trimmer_uses_the_kernel_for_chains_alone(kernels, monkeypatch):
    used = []
    monkeypatch.setattr(kernels, "trim", lambda draft, limits: used.append(draft) or draft)
    for rows, draft_length, trees in ((2, 3, False), (2, 3, True), (1025, 3, False), (2, 1025, False)):
        limits = TrimLimits.build(1)
        SurvivalTrimmer().trim(Draft.allocate(rows, draft_length, trees=trees), limits)
    assert [tuple(draft.token_ids.shape) for draft in used] == [(2, 3)]
    assert used[0].parents is None


def test_a_draft_whose_columns_lie_apart_is_left_to_the_reference(kernels):
    draft = Draft.allocate(2, 3)
    assert kernels.covers(draft)
    for name in ("token_ids", "confidence", "source"):
        assert not kernels.covers(replace(draft, **{name: getattr(draft, name).T.contiguous().T})), name


def test_what_it_keeps_is_one_hot(kernels):
    draft = Draft.allocate(2, 3, distribution=Distribution.PROBS, vocab_size=4)
    found = kernels.trim(draft, TrimLimits.build(9))
    assert found.distribution is Distribution.ONE_HOT
    assert found.draft_probs is None


@pytest.mark.parametrize("budget", range(9))
def test_ties_are_kept_column_by_column(kernels, budget):
    draft = Draft.allocate(3, 4)
    for row, length in enumerate((4, 1, 3)):
        draft.set_row(row, [1] * length, [1.0] * length)
    limits = TrimLimits.build(budget)
    assert bits(kernels.trim(draft, limits)) == bits(reference(draft, limits))
    order = [0, 1, 2, 0, 2, 0, 2, 0]
    assert reference(draft, limits).lengths.tolist() == [order[:budget].count(row) for row in range(3)]
