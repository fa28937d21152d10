"""The lookup's kernels: equal to the reference in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import ModuleType

import pytest

from specplug.lookup import compiled, layout, plain
from tests.engines.interpreted import imported_anew
from tests.lookup.runs import Run, assert_equal

NAME = "specplug.lookup.kernels"


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The kernels, interpreted, with so small blocks that texts have several."""
    with imported_anew(NAME, interpreted=True) as module, pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK", 32)
        yield module


@pytest.mark.parametrize("seed", range(20))
def test_the_kernels_are_the_reference_in_any_order_of_programs(kernels: ModuleType, seed: int) -> None:
    expected, found = (Run(Random(seed), compiled, opposite=opposite) for opposite in (False, seed % 2 == 1))
    for run in (expected, found):
        run.steps(seed)  # so that there are responses, anchors and chains
    expected.form, found.form = plain, kernels
    found.memory = lambda tensors: tensors
    assert_equal(expected.steps(2), found.steps(2))
