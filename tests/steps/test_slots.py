"""The table of slots, and requests that are ignored: they have no slot, send no events, and are in no batch."""

from __future__ import annotations

import torch

from specplug.steps.rows import Rows
from specplug.steps.slots import NO_CAP, RunningRequest, SlotAllocator
from specplug.types.request import Lifecycle, Request, RequestOptions
from specplug.types.step import StepPlan

CPU = torch.device("cpu")


def running_request(name: str, end: int = 100, stops: tuple[int, ...] = (), **options: object) -> RunningRequest:
    request = Request(name, prompt_length=1, max_tokens=end, options=RequestOptions(**options))  # type: ignore[arg-type]
    return RunningRequest(request, end=end, stop_ids=stops)


def test_rows_say_what_tenants_stated() -> None:
    places = SlotAllocator(4, CPU, lambda event: None)
    places.engine_slot = {"a": 2, "b": 0, "c": 1, "d": 2}.__getitem__
    places.start(running_request("a", end=9, stops=(3, 4)))
    places.start(running_request("b", num_speculative_tokens=5))
    places.start(running_request("c", enabled=False))
    assert places.slots.take_resets() == (0, 1, 2)
    assert places.slots.take_resets() == ()
    rows = Rows(places, ["b", "c", "a"])
    assert rows.device_slots.tolist() == [0, 1, 2]
    assert rows.generations.tolist() == [1, 1, 1]
    assert rows.caps.tolist() == [5, 0, NO_CAP]
    assert rows.ends.tolist() == [100, 100, 9]
    assert rows.stop_ids[2].tolist()[:3] == [3, 4, -1]
    places.finish("a", aborted=False)
    places.start(running_request("d"))
    assert Rows(places, ["d"]).generations.tolist() == [2]


def test_rows_describe_their_batch() -> None:
    places = SlotAllocator(4, CPU, lambda event: None)
    for name, end in (("a", 9), ("b", 100)):
        places.start(running_request(name, end=end))
    rows = Rows(places, ["b", "a"])
    tokens, lengths = torch.zeros(4, 100, dtype=torch.int32), torch.tensor([5, 7], dtype=torch.int32)
    batch = rows.batch(tokens, rows.device_slots, lengths, 50)
    batch.validate()
    assert (batch.slots.tolist(), batch.generations.tolist()) == ([1, 0], [1, 1])
    assert (batch.room.tolist(), batch.sampled.tolist()) == ([95, 2], [True, True])
    assert (batch.request_ids, batch.reset_slots) == (("b", "a"), (0, 1))
    sampled = torch.tensor([True, False])
    again = rows.batch(tokens, rows.device_slots, lengths, 50, sampled=sampled, temperature=lengths.float())
    assert (again.reset_slots, again.sampled is sampled, again.temperature.tolist()) == ((), True, [5.0, 7.0])
    caps = rows.caps_of(StepPlan(8, caps={"a": 2}))
    assert caps is not None
    assert caps.tolist() == [NO_CAP, 2]
    assert rows.caps_of(StepPlan(8)) is None


def test_an_ignored_request_is_in_no_batch_and_nobody_is_reported_of_it():
    reported = []
    places = SlotAllocator(4, CPU, lambda event: reported.append((event.kind, event.request.request_id)))
    places.start(running_request("a"))
    places.ignore("b")
    places.start(running_request("c"))
    facts = Rows(places, ["b", "a", "c"])
    assert (facts.names, facts.kept) == (("a", "c"), [1, 2])
    assert facts.are_of(["b", "a", "c"])
    assert not facts.are_of(["b", "a"])
    assert (facts.order.tolist(), facts.places.tolist()) == ([1, 2], [-1, 0, 1])
    assert Rows(places, ["a"], key=[1]).are_of([1])
    assert Rows(places, ["b"]).kept == []
    assert Rows(places, ["c", "a"]).kept is None
    places.preempt("b")
    places.resume("b")
    places.finish("b", aborted=False)
    assert not places.ignored
    assert reported == [(Lifecycle.STARTED, "a"), (Lifecycle.STARTED, "c")]
    assert len(places) == 2


def test_a_name_may_come_back_as_a_request_that_drafts():
    places = SlotAllocator(4, CPU, lambda event: None)
    places.ignore("b")
    places.start(running_request("b"))
    facts = Rows(places, ["b"])
    assert (facts.names, facts.kept) == (("b",), None)
    assert (facts.order.tolist(), facts.places.tolist()) == ([0], [0])
    places.start(running_request("b"))
    assert not facts.are_of(["b"]), "the slot has another generation"
