"""The search of corpora in Triton: equal to the reference in the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from types import ModuleType

import pytest
import torch

from specplug.lookup import compiled, corpora, corpus_search, layout, plain, storage
from tests.engines.interpreted import imported_anew
from tests.engines.kernels.test_lookup_kernels import MODULES
from tests.lookup.runs import assert_equal_steps
from tests.lookup.static import Served, TrappedTenants, segment_of, some_segment


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The kernels, interpreted, with so small blocks and few cursors, so that texts and searches have several."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(layout, "BLOCK", 32)
        patch.setattr(corpus_search, "LOOKED_AT", 4)
        names = [f"specplug.lookup.{name}" for name in MODULES]
        yield [stack.enter_context(imported_anew(name, interpreted=True)) for name in names][-1]


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 4, 5))])
def test_the_kernels_are_the_reference_in_any_order_of_programs(kernels: ModuleType, seed: int) -> None:
    expected = Served(Random(seed), compiled)
    found = Served(Random(seed), compiled, opposite=seed % 2 == 1, copied=True)
    for run in (expected, found):
        run.steps(3 * seed)
        if seed % 2 == 0:
            run.scramble()
    expected.form, found.form = plain, kernels
    found.memory = lambda tensors: tensors
    assert_equal_steps(expected, found, 3)


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


@pytest.mark.parametrize("seed", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_other_tenants_tokens_change_no_draft(kernels: ModuleType, seed: int) -> None:
    run = TrappedTenants(Random(seed), compiled, own=False)
    run.steps(10)
    run.form, run.memory = kernels, lambda tensors: tensors
    run.steps(2)
    assert run.changed == 0


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
