"""Checksums by which ranks compare the lookup's memory: any difference shows, and what cannot matter does not."""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specplug.lookup import compiled, counts, plain, storage
from specplug.lookup import layout as at
from specplug.lookup.storage import checksums
from specplug.types.tensors import checksum
from tests.lookup.runs import Run


def plain_checksum(values: list[int]) -> int:
    """The reference."""
    return sum((2 * index + 1) * value for index, value in enumerate(values)) % 2**32


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=70), st.sampled_from([1, 2, 3, 64]))
def test_a_checksum_is_the_weighted_sum(values: list[int], times: int) -> None:
    values = values * times
    assert int(checksum(torch.tensor(values, dtype=torch.int32))) % 2**32 == plain_checksum(values)


def of(run: Run) -> dict[str, int]:
    found = checksums(run.state, run.texts, torch.arange(run.slots))
    return {name: int(value) for name, value in found.items()}


@settings(max_examples=20)
@given(st.integers(0, 1 << 32), st.booleans())
def test_ranks_whose_programs_run_in_other_orders_have_equal_checksums(seed: int, opposite: bool) -> None:
    one, other = Run(Random(seed), plain), Run(Random(seed), compiled, opposite=opposite)
    for _ in range(8):
        one.steps(2)
        other.steps(2)
        assert of(one) == of(other)


def after_steps(seed: int) -> Run:
    run = Run(Random(seed), compiled)
    run.steps(12)
    return run


@settings(max_examples=50)
@given(st.integers(0, 1 << 32), st.data())
def test_any_single_difference_shows_in_its_sum(seed: int, data: st.DataObject) -> None:
    run = after_steps(seed)
    state, before = run.state, of(run)
    slot = run.random.randrange(run.slots)
    end = int(state.slots[slot, at.END])
    common = state.counts[: counts.TOKENS_END + storage.own_rows(state).shape[1]]
    places: list[tuple[str, Tensor]] = [
        ("requests", state.slots[slot, at.START + 1 : at.END]),
        ("requests", state.slots[slot, at.ENGINE :]),
        ("hit rates", common),
        *[("responses", table) for table in (state.ring, state.owners, state.buckets, state.end)],
    ]
    if state.slots[slot, at.END]:
        places.append(("texts", run.texts[slot, max(0, end - 64) : end]))
    if run.engine_tokens:
        places.append(("requests", storage.own_rows(state)[slot]))
    name, tensor = data.draw(st.sampled_from(places))
    tensor.view(-1)[run.random.randrange(tensor.numel())] ^= 1 << run.random.randrange(31)
    after = of(run)
    assert [part for part in before if before[part] != after[part]] == [name]


@settings(max_examples=50)
@given(st.integers(0, 1 << 32))
def test_slots_numbers_generations_and_other_slots_do_not_matter(seed: int) -> None:
    run = after_steps(seed)
    shown = run.random.sample(range(run.slots), run.random.randint(1, run.slots))
    moved = list(range(run.slots))
    run.random.shuffle(moved)

    def placed(table: Tensor) -> Tensor:
        found = torch.full_like(table, 77)
        found[[moved[slot] for slot in shown]] = table[shown]
        return found

    facts, counts = placed(run.state.slots), run.state.counts.clone()
    facts[:, at.GENERATION] += 5
    other = run.state._replace(slots=facts, counts=counts)
    storage.own_rows(other)[:] = placed(storage.own_rows(run.state))
    found = checksums(other, placed(run.texts), torch.tensor([moved[slot] for slot in shown]))
    assert found == checksums(run.state, run.texts, torch.tensor(shown))
