"""Requests that nobody hears of: they have no place, and are in no batch."""

from __future__ import annotations

import torch

from specplug.runtime.rows import RowFacts
from specplug.runtime.running_request import Resident
from specplug.runtime.slot_allocator import Places
from specplug.types.request import Lifecycle, Request


def resident(name: str) -> Resident:
    return Resident(Request(name, 3, max_tokens=8), end=11, stop_ids=())


def test_an_ignored_request_is_in_no_batch_and_nobody_is_told_of_it():
    told = []
    places = Places(4, torch.device("cpu"), lambda event: told.append((event.kind, event.request.request_id)))
    places.start(resident("a"))
    places.ignore("b")
    places.start(resident("c"))
    facts = RowFacts(places, ["b", "a", "c"])
    assert (facts.names, facts.kept) == (("a", "c"), [1, 2])
    assert facts.hold(places, ["b", "a", "c"])
    assert RowFacts(places, ["b"]).kept == []
    assert RowFacts(places, ["c", "a"]).kept is None
    places.preempt("b")
    places.resume("b")
    places.finish("b", aborted=False)
    assert not places.ignored
    assert told == [(Lifecycle.STARTED, "a"), (Lifecycle.STARTED, "c")]
    assert len(places) == 2


def test_a_name_may_come_back_as_a_request_that_drafts():
    places = Places(4, torch.device("cpu"), lambda event: None)
    places.ignore("b")
    places.start(resident("b"))
    facts = RowFacts(places, ["b"])
    assert (facts.names, facts.kept) == (("b",), None)
