"""An operator's orders as the numbers that SGLang carries, and the workers whose status is reported."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import EngineError, SettingsError
from specplug.metrics import SpecMetrics
from specplug.operator.control import parse_order
from specplug.types.step import Verdict
from specplug_sglang import status
from specplug_sglang.scheduler.drafts import PERIOD, Counts

ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["on", "off"]),
        "num_speculative_tokens": st.none() | st.integers(0, 256),
    },
)


@given(ORDERS)
def test_orders_survive_as_numbers(order):
    numbers = status.numbers_of(order)
    assert all(type(number) is int for number in numbers.values())
    assert status.order_of(numbers) == parse_order(order, "test").model_dump(exclude_unset=True) == order


def test_a_mode_that_says_nothing_is_left_out():
    assert status.numbers_of({"mode": None, "num_speculative_tokens": 3}) == {"specplug_num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("numbers", "what"),
    [
        ({status.MODE: 2}, "found 2"),
        ({status.LIMIT: -2}, "found -2; expected greater than or equal to 0"),
        ({status.LIMIT: 257}, "found 257"),
        ({status.LIMIT: 3.5}, "found 3.5; expected a valid integer"),
    ],
)
def test_numbers_that_are_no_order_are_refused(numbers, what):
    with pytest.raises(SettingsError, match=what):
        status.order_of(numbers)


class Manager:
    """Stands in for a `TokenizerManager` whose schedulers answer in any order."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = states

    async def get_internal_state(self) -> list[dict[str, Any]]:
        return list(self.states)


def test_engines_are_reported_by_rank_whoever_answers_first():
    manager = Manager({"specplug": {"engine": 10}}, {"specplug": {"engine": 2}})
    assert asyncio.run(status.ask(manager)) == [{"engine": 2}, {"engine": 10}]


@pytest.mark.parametrize(
    ("state", "what"),
    [({}, "specplug does not draft"), ({"specplug": {"error": "ValueError: broken"}}, "ValueError: broken")],
)
def test_an_engine_that_cannot_tell_is_an_error(state, what):
    with pytest.raises(EngineError, match=what):
        asyncio.run(status.ask(Manager({"specplug": {"engine": 0}}, state)))


class Queue:
    """Stands in for PyTorch's module of a device: the test decides when events are over, and waiting raises."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def Event(self) -> Any:
        event = SimpleNamespace(over=False, record=lambda: None)
        event.query = lambda: event.over
        self.events.append(event)
        return event

    def synchronize(self) -> None:
        raise AssertionError("somebody waits for the device")

    def catch_up(self) -> None:
        for event in self.events:
            event.over = True


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for `Drafting` on a device, as far as the status reads it; `drafts.step()` counts one token."""
    metrics, queue, now = SpecMetrics(("ngram",), 4), Queue(), [0.0]
    counts = Counts(metrics, queue, lambda: now[0])

    def step() -> None:
        row = torch.ones(1, dtype=torch.int32)
        fate = Verdict(*(row if name == "emitted" else 0 * row for name in (field.name for field in fields(Verdict))))
        metrics.record(-row[:, None], fate)
        counts.step()

    def emitted() -> int:
        stage = SimpleNamespace(sources=(), proposers={}, metrics=metrics)
        settings = SimpleNamespace(proposer="ngram", extra_proposers=())
        slots = SimpleNamespace(status=dict)
        drafting = SimpleNamespace(rank=0, stage=stage, counts=counts, device="cuda", allocator=slots)
        drafting.resolved = SimpleNamespace(settings=settings)
        scheduler = SimpleNamespace(draft_worker=SimpleNamespace(drafting=drafting), device_module=queue)
        return status.worker_status(scheduler)["metrics"]["total"]["emitted"]

    return SimpleNamespace(step=step, emitted=emitted, queue=queue, now=now, counts=counts, metrics=metrics)


def test_a_status_waits_for_no_step(drafts):
    """While steps run it has the counts of an earlier one, and all of them as soon as none runs."""
    assert drafts.emitted() == 0
    drafts.step()
    assert drafts.emitted() == 0  # the first copy is still on its way
    drafts.queue.catch_up()
    drafts.step()
    drafts.step()
    assert drafts.emitted() == 1
    drafts.queue.catch_up()
    assert drafts.emitted() == 3


def test_steps_without_drafts_are_counted_on_the_host(drafts):
    """At once, whatever runs, and nothing is read from the device for them a second time."""
    drafts.step()
    drafts.metrics.record_on_host(4, after_stop=1)
    assert drafts.emitted() == 3
    drafts.queue.catch_up()
    assert drafts.emitted() == 4
    drafts.metrics.record_on_host(2)
    total = drafts.counts.read().total
    assert (total.target_steps, total.emitted, total.after_stop) == (6, 6, 1)
    assert drafts.counts.read().by_source["none"].emitted == 6


def test_counts_are_copied_a_few_times_a_second(drafts):
    for _ in range(10):
        drafts.step()
        drafts.queue.catch_up()
    copies = 1
    assert len(drafts.queue.events) == 10 + copies
    drafts.now[0] += PERIOD
    drafts.step()
    assert len(drafts.queue.events) == 11 + copies + 1
