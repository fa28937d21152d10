"""Tokens after a stop, found on the device, equal those of a plain loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.runtime.ends import StopDetector
from specplug.runtime.slots import RunningRequest, SlotTable
from specplug.types.request import Request, RequestOptions

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
