"""The lookup's kernels, of corpora too: equal to the reference in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from types import ModuleType
from typing import Any

import pytest
import torch

from specplug.lookup import compiled, corpora, layout, plain, storage
from specplug.testing.driver import Driver
from tests.engines.interpreted import lookup_kernels
from tests.lookup.runs import Run, Trapped, assert_equal_steps
from tests.lookup.static import Served, TrappedTenants, segment_of, some_segment
from tests.proposers.ngram_tools import PROMPT, spec


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    with lookup_kernels() as found:
        yield found


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def by_kernels(run: Run, kernels: ModuleType) -> Run:
    """Let kernels take the further steps of a run."""
    run.form = kernels
    run.memory = lambda tensors: tensors
    return run


OF_CORPORA = (0, 3, *map(slow, (1, 2, 4, 5)))


@pytest.mark.parametrize("seed", [*range(6), *map(slow, range(6, 12))])
def test_the_kernels_are_the_reference_in_any_order_of_programs(kernels: ModuleType, seed: int) -> None:
    expected, found = (Run(Random(seed), compiled, opposite=opposite) for opposite in (False, seed % 2 == 1))
    assert_equal_later(expected, found, kernels, before=2 * seed, scrambled=seed % 3 == 2, steps=2)


@pytest.mark.parametrize("seed", OF_CORPORA)
def test_those_of_corpora_are_the_reference_in_any_order_of_programs(kernels: ModuleType, seed: int) -> None:
    expected = Served(Random(seed), compiled)
    found = Served(Random(seed), compiled, opposite=seed % 2 == 1, copied=True)
    assert_equal_later(expected, found, kernels, before=3 * seed, scrambled=seed % 2 == 0, steps=3)


@pytest.mark.parametrize("seed", [5, *map(slow, (107, 246))])
def test_the_kernels_draft_the_reference_s_trees(kernels: ModuleType, seed: int) -> None:
    """These runs draft large trees of several tokens."""
    expected, found = (Run(Random(seed), compiled) for _ in range(2))
    assert (expected.trees, expected.draft_length, expected.tokens > 2) == (True, 8, True)
    assert assert_equal_later(expected, found, kernels, before=12, scrambled=False, steps=2) > 1


def assert_equal_later(
    expected: Run, found: Run, kernels: ModuleType, *, before: int, scrambled: bool, steps: int
) -> int:
    """Compare steps of the reference and of kernels after compiled ones, so that there are responses and chains.

    Return the longest draft.
    """
    for run in (expected, found):
        run.steps(before)
        if scrambled:
            run.scramble()
    expected.form = plain
    return assert_equal_steps(expected, by_kernels(found, kernels), steps)


TRAPS = [
    (Trapped, 0),
    (TrappedTenants, 1),
    *(slow(Trapped, seed) for seed in (1, 2)),
    slow(TrappedTenants, 0),
]


@pytest.mark.parametrize(("kind", "seed"), TRAPS)
def test_other_owners_and_tenants_tokens_change_no_draft(kernels: ModuleType, kind: type[Any], seed: int) -> None:
    run = kind(Random(seed), compiled, own=False)
    run.steps(10)
    by_kernels(run, kernels).steps(2)
    assert run.changed == 0


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_anchors_are_those_of_the_reference(kernels: ModuleType, seed: int) -> None:
    """Texts follow any places of documents that are short, so that their ends are near."""
    random, slots = Random(seed), 8
    documents = [("c", [random.randrange(30) for _ in range(random.randint(1, 12))]) for _ in range(20)]
    loaded = corpora.load({"one": [segment_of(documents)]}, numbers := corpora.Numbers(), slots, copied=True)
    state = corpora.use(storage.allocate(slots, 20, 4, 0), loaded)
    corpora.assign(state, torch.arange(slots), [numbers.known_numbers("one", [])] * slots)
    texts = torch.tensor([[-1, random.randrange(30)] * 10 for _ in range(slots)], dtype=torch.int32)
    for slot in range(slots):
        known = random.randint(12, 20)
        anchor = [0, random.randrange(1, int(loaded.segments[0, corpora.LENGTH])), known, known - random.randrange(2)]
        state.slots[slot, layout.SEGMENT : layout.FOLLOWED_AT + 1] = torch.tensor(anchor)
    state.slots[:, layout.END] = 20
    rows = layout.Rows(torch.arange(slots), *torch.tensor([[0] * slots, [20] * slots, [4] * slots], dtype=torch.int32))
    found = []
    for form, view in ((plain, storage.views), (kernels, lambda tensors: tensors)):
        own = layout.State(*(tensor.clone() for tensor in state))
        drafts = storage.drafts_of(slots, 4)
        plain.search(storage.views(own), texts.numpy(), storage.views(rows))
        form.draft(view(own), texts.numpy() if form is plain else texts, view(rows), view(drafts), 100)
        found.append([own.slots, own.voted, own.chain, *drafts])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("seed", range(8))
def test_the_search_finds_what_the_reference_finds_in_larger_segments(kernels: ModuleType, seed: int) -> None:
    random = Random(seed)
    tenants = {name: [some_segment(random, 3) for _ in range(random.randint(1, 3))] for name in ("one", "two")}
    documents = [(random.choice("ab"), [random.randrange(9) for _ in range(99)]) for _ in range(20)]
    tenants["one"].append(segment_of(documents))
    numbers = corpora.Numbers()
    state = corpora.use(storage.allocate(4, 99, 4, 0), corpora.load(tenants, numbers, 4, copied=True))
    requests = ("one", ["a"]), ("two", []), ("one", []), (None, [])
    corpora.assign(state, torch.arange(4), [numbers.known_numbers(*it) for it in requests])
    texts = torch.tensor([[random.randrange(3) for _ in range(99)] for _ in range(4)], dtype=torch.int32)
    for row in (0, 2):
        tokens = random.choice(documents)[1][: random.randint(1, 99)]
        texts[row, 99 - len(tokens) :] = torch.tensor(tokens)
    rows = layout.Rows(torch.arange(4), *torch.tensor([[0] * 4, [99] * 4, [1, 1, 1, 1]], dtype=torch.int32))
    state.slots[:, layout.END] = 99
    kernels.search(state, texts, rows)
    found = state.corpus_matches.clone()
    plain.search(storage.views(state), texts.numpy(), storage.views(rows))
    assert torch.equal(found, state.corpus_matches)
    assert (found[:3, :, 0] > 0).any(1).all()
    assert not found[3].any()


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
