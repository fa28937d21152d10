"""SGLang's steps: kernels equal to tensor operations in Triton's interpreter, compiled for GPUs.

They need Triton and nothing of SGLang, and of the engines' environments on a CPU only vLLM's has Triton.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specplug.steps.device_steps import launches_for
from specplug.steps.trim import SurvivalTrimmer
from specplug.types.step import Draft
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification import trees
from specplug_sglang.verification.trees import TokenTable
from tests.adapters.sglang_engine import DRAFT_LENGTH, Engine, run
from tests.engines.interpreted import device_kernels, imported_anew
from tests.engines.vllm.test_device_kernels import trimming_by_tensors
from tests.steps.oracle import Scripted, random_script, scripted_stage
from tests.steps.transfers import view_of

NAME = "specplug_sglang.verification.kernels"
CPU = torch.device("cpu")
SLOTS = 6
LENGTH = 20
MOST = 5
PLACES = torch.zeros(SLOTS, LENGTH + MOST, dtype=torch.int32)


RANDOMS = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def kernels():
    with imported_anew(NAME, interpreted=True) as module:
        yield module


@pytest.fixture(scope="module")
def launches():
    with device_kernels(interpreted=True), trimming_by_tensors():
        yield launches_for(CPU)


def filled(random: Random) -> TokenTable:
    table = TokenTable(SLOTS, LENGTH, MOST + 1, CPU)
    table.tokens.copy_(
        torch.arange(random.randint(0, 9), 9 + table.tokens.numel())[: table.tokens.numel()].view_as(table.tokens)
    )
    table.tokens = view_of(random, table.tokens)
    return table


def batch(random: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the slots and the cached tokens of some rows."""
    slots = random.sample(range(SLOTS), random.randint(0, SLOTS))
    columns = torch.tensor(slots), torch.tensor([random.randint(0, LENGTH - 1) for _ in slots])
    one, other = (view_of(random, it.to(random.choice([torch.int32, torch.int64]))) for it in columns)
    return one, other


def apart(random: Random, draft: Draft) -> Draft:
    """Return a draft whose tensors are views of memory of their own."""
    fields = {"token_ids": draft.token_ids, "lengths": draft.lengths}
    return replace(draft, **{name: view_of(random, tensor) for name, tensor in fields.items()})


@given(random=RANDOMS)
@settings(max_examples=40)
def test_what_verifies_chains_is_the_same(kernels, random):
    table = filled(random)
    (slots, before) = batch(random)
    draft = Draft.allocate(SLOTS, MOST, device=CPU).view(len(slots), random.randint(0, MOST))
    for row in range(len(slots)):
        draft.set_row(row, [random.randint(100, 200) for _ in range(random.randint(0, draft.draft_length))], 0.5)
    draft = apart(random, draft)
    places = view_of(random, torch.randperm(SLOTS * (LENGTH + MOST)).int().view(SLOTS, -1))
    found, expected = (it.verification(draft, table, slots, before, places) for it in (kernels, trees))
    for name in ("tokens", "positions", "child", "sibling"):
        assert torch.equal(getattr(found.nodes, name), getattr(expected.nodes, name)), name
    assert found.nodes.sees is expected.nodes.sees is None
    for name in ("cached", "counts"):
        one, other = (getattr(it, name) for it in (found, expected))
        assert one.dtype is other.dtype
        assert torch.equal(one, other), name


def test_drafts_from_another_rank_have_the_same_nodes(kernels):
    """Their lengths are a column between their ids."""
    slots = torch.arange(3)
    draft = Draft.allocate(3, 4)
    for row in range(3):
        draft.set_row(row, [7, 8, 9][:row], 0.5)
    group = SimpleNamespace(world_size=2, rank_in_group=0, broadcast=lambda packed, src: None)
    received = RankGroup(group).share(draft)
    found, expected = (
        kernels.verification(it, filled(Random(0)), slots, slots, PLACES).nodes for it in (received, draft)
    )
    assert found.child.tolist() == expected.child.tolist() == [[-1] * 5, [1, *[-1] * 4], [1, 2, *[-1] * 3]]
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.positions, expected.positions)


def test_trees_take_tensor_operations(kernels):
    table = filled(Random(0))
    slots = torch.tensor([2])
    draft = Draft.allocate(1, 3, device=CPU, trees=True)
    draft.set_row(0, [7, 8, 9], 0.5)
    draft.parents[0] = torch.tensor([-1, -1, 0])
    found = kernels.verification(draft, table, slots, slots, PLACES).nodes
    assert found.sees is not None
    assert found.child.tolist() == [[1, 3, -1, -1]]


@given(random=RANDOMS)
@settings(max_examples=40)
def test_the_same_tokens_are_appended(kernels, random):
    slots, before = batch(random)
    rows = len(slots)
    n = random.randint(1, MOST + 1)
    counts = torch.tensor([random.randint(1, n) for _ in range(rows)], dtype=random.choice([torch.int32, torch.int64]))
    predict = torch.randint(0, 99, (rows * n,), generator=torch.Generator().manual_seed(rows), dtype=torch.int32)
    index = torch.full((rows, n), -1, dtype=torch.int32)
    for row, count in enumerate(counts.tolist()):
        index[row, :count] = torch.tensor(sorted(random.sample(range(row * n, row * n + n), count)))
    predict, index, counts = (view_of(random, it) for it in (predict, index, counts))
    seed = random.random()
    tables = []
    found = []
    for operations in (kernels, trees):
        tables.append(filled(Random(seed)))
        found.append(operations.append(tables[-1], slots, before, predict, index, counts))
    (one, other) = found
    assert torch.equal(one.new_seq_lens, other.new_seq_lens)
    assert torch.equal(one.last, other.last)
    assert one.last.dtype == other.last.dtype == torch.int32
    for row, count in enumerate(counts.tolist()):
        assert torch.equal(one.emitted.view(-1, n)[row, :count], other.emitted.view(-1, n)[row, :count])
        end = min(int(before[row]) + 1 + count, LENGTH)
        assert torch.equal(tables[0].tokens[slots[row], :end], tables[1].tokens[slots[row], :end])


@given(random=RANDOMS, mixed=st.booleans(), learns=st.booleans(), engine_tokens=st.sampled_from([0, 0, 2]))
@settings(max_examples=20, deadline=None)
def test_drafts_between_kernels_are_those_of_the_stage(launches, random, mixed, learns, engine_tokens):
    """Drafts, counts, reports, and what a proposer is handed, of SGLang's own drafter as well.

    Batches with a grammar are the stage's, here any batch.
    """
    script = random_script(random)
    how = {"learns": learns, "engine_tokens": engine_tokens}
    proposers = [Scripted(script) for _ in range(2)]
    stages = [scripted_stage(it, SurvivalTrimmer(), DRAFT_LENGTH, **how) for it in proposers]
    engines = [
        Engine(stage=stages[0], reports=True),
        Engine(stage=stages[1], launches=launches, reports=True),
    ]
    decided: dict[int, tuple[Decoding, bool]] = {}  # it keeps the steps, so that no other one gets the id of one

    def constrained(step: Decoding) -> bool:
        if id(step) not in decided:
            decided[id(step)] = step, mixed and random.randint(0, 2) == 0
        return decided[id(step)][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoding, "is_constrained", property(constrained))
        run(random, engines, steps=20, engine_tokens=engine_tokens)
        expected, found = [engine.close() for engine in engines]
    assert found == expected
    assert repr(proposers[1].log) == repr(proposers[0].log)
