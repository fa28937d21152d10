"""Tokens after a stop, found on the device, equal those of a plain loop; tests of the slot table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.runtime.ends import StopDetector
from specplug.runtime.slots import NO_CAP, SlotTable
from specplug.types.request import Request, RequestOptions
from specplug_vllm.worker.requests import RunningRequest

CPU = torch.device("cpu")
DRAFT_LENGTH = 3


def running_request(name: str, end: int = 100, stops: tuple[int, ...] = (), **options: object) -> RunningRequest:
    request = Request(name, prompt_length=1, max_tokens=end, options=RequestOptions(**options))  # type: ignore[arg-type]
    return RunningRequest(request, end=end, stop_ids=stops)


@dataclass
class Run:
    """One request's life: what each step emits, and where it ends."""

    steps: list[list[int]]
    end: int
    stops: tuple[int, ...]


runs = st.builds(
    Run,
    steps=st.lists(st.lists(st.integers(0, 5), max_size=DRAFT_LENGTH + 1), min_size=1, max_size=5),
    end=st.integers(1, 12),
    stops=st.lists(st.integers(0, 5), max_size=2, unique=True).map(tuple),
)


def plain(run: Run) -> list[int]:
    """Return, per step, how many of its tokens are after the first stop; the prompt is one token long."""
    stopped, length, counts = False, 1, []
    for step in run.steps:
        after = 0
        for token in step:
            length += 1
            after += stopped
            stopped = stopped or token in run.stops or length >= run.end
        counts.append(after)
    return counts


@given(st.lists(st.lists(runs, min_size=1, max_size=3), min_size=1, max_size=3))
def test_counts_equal_those_of_a_plain_loop_for_each_tenant_of_a_slot(batch: list[list[Run]]) -> None:
    """A new tenant has not stopped, whatever the one before it did; steps of some slots are none of the others."""
    slots = torch.tensor(range(len(batch))).flip(0)
    table, watch = SlotTable(len(batch), CPU), StopDetector(len(batch), DRAFT_LENGTH, CPU)
    tokens = torch.full((len(batch), 32), 7, dtype=torch.int32)  # 7 stops nothing
    lengths, places = torch.ones(len(batch), dtype=torch.int32), slots.tolist()
    waiting = [[(run, step) for run in tenants for step in (None, *run.steps)] for tenants in batch]  # None: it begins
    found: list[list[int]] = [[] for _ in batch]
    while any(waiting):
        emitted = torch.zeros_like(lengths)
        for row, (slot, steps) in enumerate(zip(places, waiting, strict=True)):
            if steps and steps[0][1] is None:
                run, _ = steps.pop(0)
                if slot in table.occupants:
                    table.free(slot)
                table.take(slot, running_request(str(row), run.end, run.stops))
                lengths[row], tokens[slot] = 1, 7
            news = steps.pop(0)[1] if steps else []
            tokens[slot, int(lengths[row]) : int(lengths[row]) + len(news)] = torch.tensor(news, dtype=torch.int32)
            emitted[row] = len(news)
        lengths = lengths + emitted
        after = watch.after(tokens, slots, slots, lengths, emitted, table.rows(slots)).tolist()
        for row, count in enumerate(after):
            found[row].append(count)
    for tenants, counts in zip(batch, found, strict=True):
        expected = [count for run in tenants for count in plain(run)]
        assert counts[: len(expected)] == expected
        assert not any(counts[len(expected) :])


def test_rows_say_what_tenants_stated() -> None:
    table = SlotTable(4, CPU)
    assert table.take(2, running_request("a", end=9, stops=(3, 4))) == 1
    assert table.take(0, running_request("b", num_speculative_tokens=5)) == 1
    table.take(1, running_request("c", enabled=False))
    assert table.take_resets() == (0, 1, 2)
    assert table.take_resets() == ()
    rows = table.rows(torch.tensor([0, 1, 2]))
    assert rows.generations.tolist() == [1, 1, 1]
    assert rows.caps.tolist() == [5, 0, NO_CAP]
    assert rows.ends.tolist() == [100, 100, 9]
    assert rows.stop_ids[2].tolist()[:3] == [3, 4, -1]
    table.free(2)
    assert table.take(2, running_request("d")) == 2
    assert table.rows(torch.tensor([2])).generations.tolist() == [2]
