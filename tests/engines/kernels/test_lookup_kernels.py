"""The lookup's kernels: equal to the reference in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from types import ModuleType

import pytest

from specplug.lookup import compiled, layout, plain
from specplug.testing.driver import Driver
from tests.engines.interpreted import imported_anew
from tests.lookup.runs import Run, Trapped, assert_equal_steps
from tests.proposers.ngram_tools import PROMPT, spec

ROOMS = ("memory", "scan", "corpus", "draft", "tree")
MODULES = ("kernel_arithmetic", *(f"{name}_kernels" for name in ROOMS), "kernels")


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The kernels, interpreted, with so small blocks that texts have several."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(layout, "BLOCK", 32)
        found = [stack.enter_context(imported_anew(f"specplug.lookup.{it}", interpreted=True)) for it in MODULES]
        yield found[-1]


def _seeds(often: int, slow: int) -> list[object]:
    """Return the seeds of so many runs, and of further ones that only a run of slow tests takes."""
    return [*range(often), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(often, often + slow))]


@pytest.mark.parametrize("seed", _seeds(6, 6))
def test_the_kernels_are_the_reference_in_any_order_of_programs(kernels: ModuleType, seed: int) -> None:
    expected, found = (Run(Random(seed), compiled, opposite=opposite) for opposite in (False, seed % 2 == 1))
    for run in (expected, found):
        run.steps(2 * seed)  # so that there are responses, anchors and chains
        if seed % 3 == 2:
            run.scramble()
    expected.form, found.form = plain, kernels
    found.memory = lambda tensors: tensors
    assert_equal_steps(expected, found, 2)


@pytest.mark.parametrize("first", _seeds(1, 2))
def test_the_kernels_draft_the_reference_s_trees(kernels: ModuleType, first: int) -> None:
    """Of the runs of 100 seeds, the first one that drafts large trees of several tokens."""
    seeds = range(100 * first, 100 * first + 100)
    run_of = {seed: Run(Random(seed), compiled) for seed in seeds}
    seed = next(it for it, run in run_of.items() if run.trees and run.draft_length == 8 and run.tokens > 2)
    expected, found = run_of[seed], Run(Random(seed), compiled)
    for run in (expected, found):
        run.steps(12)
    expected.form, found.form = plain, kernels
    found.memory = lambda tensors: tensors
    assert assert_equal_steps(expected, found, 2) > 1


@pytest.mark.parametrize("seed", _seeds(1, 2))
def test_other_owners_tokens_change_no_draft(kernels: ModuleType, seed: int) -> None:
    run = Trapped(Random(seed), compiled, own=False)
    run.steps(10)
    run.form, run.memory = kernels, lambda tensors: tensors
    run.steps(2)
    assert run.changed == 0


def test_the_proposer_launches_kernels_on_what_it_passes_to_compiled_code(kernels: ModuleType) -> None:
    """A reference, tokens that are not text, a sibling, and a response that a later request drafts from."""
    found = []
    for is_compiled in (True, False):
        with Driver(spec(), vocab_size=128, max_slots=2, max_length=32, max_draft_length=3) as driver:
            steps = driver.proposer.steps  # type: ignore[attr-defined]
            if not is_compiled:
                steps._form, steps._is_compiled = kernels, False
                steps._use(steps.state)
            drafts = []
            driver.start("a", PROMPT, isolation_key="us", references=[[*PROMPT, 1, 2, 3, 4]])
            driver.start("b", PROMPT, isolation_key="us", barriers=[(1, 2)])
            for tokens in ([1, 2, 3, 5, 6], [7]):
                driver.extend("a", tokens)
                drafts.append(driver.step(3).by_request())
                driver.extend("b", tokens[:4])
            driver.leave("a")
            driver.start("c", [*PROMPT, 1, 2, 3, 5], isolation_key="us")
            drafts.append(driver.step(3).by_request())
        found.append(drafts)
    assert found[0] == found[1]
    assert found[0][2]["c"].token_ids == (6, 7)
    assert found[0][1]["b"].token_ids == (6, 7)
