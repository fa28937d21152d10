"""V2's rows without a reported request: drafts go to the other rows, and these rows get padding."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stops import StopDetector
from specplug.types.draft import Draft
from specplug.types.request import Request
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.v2 import Speculator, buffers
from specplug_vllm.worker.v2_device import DeviceDrafting

CPU = torch.device("cpu")
SLOTS, DRAFT_LENGTH = 6, 3


def speculator(names: list[str], ignored: set[str]) -> tuple[Speculator, list[tuple[str, ...]]]:
    """Return a speculator of requests that each hold the slot of their place in `names`, and the batches it sees."""
    seen: list[tuple[str, ...]] = []

    def step(batch, outcome, caps):
        seen.append(batch.request_ids)
        assert len(outcome.emitted) == len(caps) == len(batch.slots) == len(batch.request_ids)
        draft = Draft.allocate(len(batch.slots), DRAFT_LENGTH, device=CPU)
        draft.lengths.fill_(2)
        draft.token_ids[:, :2] = torch.stack((batch.slots, batch.slots), 1) + 100
        draft.confidence[:, :2] = 0.5
        return draft

    drafting = object.__new__(Drafting)
    drafting.device, drafting.vocab_size = CPU, 200
    drafting.allocator = SlotAllocator(SLOTS, CPU, lambda event: None)
    drafting.allocator.engine_slot = names.index
    drafting.slots, drafting.stops = drafting.allocator.slots, StopDetector(SLOTS, DRAFT_LENGTH, CPU)
    drafting.step = step
    for name in names:
        if name in ignored:
            drafting.allocator.ignore(name)
        else:
            drafting.allocator.start(RunningRequest(Request(name, 2, max_tokens=9), end=11, stop_ids=()))
    found = object.__new__(Speculator)
    found.drafting, found.draft_logits, found._facts = drafting, None, None
    found._is_warmup, found._is_idle, found._steps = False, False, None
    found._ranks = SimpleNamespace(broadcast=lambda tensor: None)
    found._sent, found._out, found.draft_token_confidence_probs = buffers(SLOTS, DRAFT_LENGTH, CPU, together=False)
    found._states = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=torch.zeros(SLOTS, 16, dtype=torch.int32)),
        total_len=SimpleNamespace(gpu=torch.full((SLOTS,), 3, dtype=torch.int32)),
    )
    newest = torch.zeros(SLOTS, 1, dtype=torch.int64)
    found._on_device = DeviceDrafting(drafting, None, (*found._types(CPU), newest))
    return found, seen


def proposed(found: Speculator, names: list[str], slots: list[int]) -> list[list[int]]:
    batch = SimpleNamespace(num_reqs=len(names), idx_mapping=torch.tensor(slots, dtype=torch.int32), req_ids=names)
    ones, last = torch.ones(len(names), dtype=torch.int32), torch.arange(SLOTS)[:, None]
    found.draft_token_confidence_probs.fill_(9.0)
    given = (ones, ones * 0, last, None, torch.zeros(SLOTS), None)
    return found.propose(batch, None, {}, None, None, *given).tolist()


def test_only_rows_of_requests_with_a_place_are_drafted_for():
    found, seen = speculator(["a", "b", "c"], ignored={"b"})
    assert proposed(found, ["b", "c", "a"], [1, 2, 0]) == [[1, 1, 1], [102, 102, 2], [100, 100, 0]]
    assert found.draft_token_confidence_probs[:3].tolist() == [[0.0] * 3, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]
    assert proposed(found, ["c", "a"], [2, 0]) == [[102, 102, 2], [100, 100, 0]]
    assert proposed(found, ["b"], [1]) == [[1, 1, 1]]
    assert found.draft_token_confidence_probs[0].tolist() == [0.0] * 3
    assert seen == [("c", "a"), ("c", "a")]
