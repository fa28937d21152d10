"""Ignored requests have no slot, send no events, and are in no batch."""

from __future__ import annotations

import torch

from specplug.runtime.slots import RowFacts, RunningRequest, SlotAllocator
from specplug.types.request import Lifecycle, Request


def running_request(name: str) -> RunningRequest:
    return RunningRequest(Request(name, 3, max_tokens=8), end=11, stop_ids=())


def test_an_ignored_request_is_in_no_batch_and_nobody_is_reported_of_it():
    reported = []
    places = SlotAllocator(
        4, torch.device("cpu"), lambda event: reported.append((event.kind, event.request.request_id))
    )
    places.start(running_request("a"))
    places.ignore("b")
    places.start(running_request("c"))
    facts = RowFacts(places, ["b", "a", "c"])
    assert (facts.names, facts.kept) == (("a", "c"), [1, 2])
    assert facts.hold(places, ["b", "a", "c"])
    assert RowFacts(places, ["b"]).kept == []
    assert RowFacts(places, ["c", "a"]).kept is None
    places.preempt("b")
    places.resume("b")
    places.finish("b", aborted=False)
    assert not places.ignored
    assert reported == [(Lifecycle.STARTED, "a"), (Lifecycle.STARTED, "c")]
    assert len(places) == 2


def test_a_name_may_come_back_as_a_request_that_drafts():
    places = SlotAllocator(4, torch.device("cpu"), lambda event: None)
    places.ignore("b")
    places.start(running_request("b"))
    facts = RowFacts(places, ["b"])
    assert (facts.names, facts.kept) == (("b",), None)
