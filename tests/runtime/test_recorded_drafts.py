"""A recorded trace gets the same drafts, to the last bit, from a replay and from engines' ways of taking steps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specplug.assembly import build_draft_stage
from specplug.cli.replay import SHIPPED
from specplug.interfaces import PluginContext
from specplug.match.cpu.parallel import FEWEST_ROWS
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.replay import Setup, load_tokenizer, read_traces, tokenize
from specplug.replay.engine import ReplayEngine
from specplug.replay.items import corpora_of, stored
from specplug.replay.score import Offer
from specplug.runtime.rows import RowFacts
from specplug.runtime.running_request import RunningRequest
from specplug.runtime.slot_allocator import SlotAllocator
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.sources import load_settings
from specplug.types.caps import EngineCaps
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.request import Reference, Request
from tests.pipeline.fake_stream import FakeStream
from tests.replay.tools import in_turn
from tests.runtime.stream_engine import Late

CPU, PLAN, MOST = torch.device("cpu"), StepPlan(8), 24  # tokens of an answer
SLOTS, LENGTH, VOCAB = FEWEST_ROWS + 4, 2048, 1 << 16  # so many rows that threads share them
ITEMS = tokenize(read_traces(SHIPPED)["structured"], load_tokenizer("tiny"))
PARTS = [
    replace(item, id=f"{item.id} {skip}", prompt=item.prompt[20 * skip :], output=item.output[skip : skip + MOST])
    for skip, item in product(range(14), ITEMS)
]
CORPORA = corpora_of(ITEMS[:6], documents=True)


class Streamed:
    """Compiled steps, as on both of vLLM's runners and SGLang; each waits until requests are ingested."""

    def __init__(self, setup: Setup, store: str | None, **of_stream: Any) -> None:
        caps = EngineCaps(PLAN.draft_length, trees=setup.trees)
        context = PluginContext(caps, vocab_size=VOCAB, max_slots=SLOTS, max_length=LENGTH)
        self.stage = build_draft_stage(load_settings(setup.as_settings(store)).settings, default_registry(), context)
        self.allocator = SlotAllocator(SLOTS, CPU, lambda event: self.stage.on_event(event))
        self.allocator.engine_slot = lambda name: next(slot for slot, it in self.running.items() if it == name)
        self.running, self.texts = {}, torch.full((SLOTS, LENGTH), -7, dtype=torch.int32)
        self.lengths, self.emitted, self.verified = torch.zeros(3, SLOTS, dtype=torch.int32)
        draft = self.stage.runners[0].buffer.view(1, PLAN.draft_length)
        like = self._rows(torch.tensor([0]), self.emitted, self.emitted), _outputs(draft)
        self.steps = StreamSteps(self.stage, self.allocator.slots, LENGTH, VOCAB, CPU, like=like, **of_stream)
        self.close = self.steps.close

    def start(self, slot: int, request_id: str, prompt: Any, documents: Sequence[Any]) -> None:
        self.running[slot] = request_id
        request = Request(request_id, prompt.size, LENGTH, references=tuple(map(Reference.of, documents)))
        self.allocator.start(RunningRequest(request, LENGTH, stop_ids=(), tokens=prompt))
        self.lengths[slot] = self.verified[slot] = 0
        self.extend(slot, prompt.tolist())

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        start, self.emitted[slot] = int(self.lengths[slot]), len(tokens)
        self.lengths[slot] += len(tokens)
        self.texts[slot, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    def propose(self) -> list[Offer]:
        draft = self.take([*self.running])
        rows = [it.tolist() for it in (draft.token_ids, draft.confidence, draft.parents) if it is not None]
        return [Offer(*(row[:count] for row in of)) for count, *of in zip(draft.lengths.tolist(), *rows, strict=True)]

    def observe(self, offers: Sequence[Offer], accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        for slot, offer, tokens in zip(self.running, offers, emitted, strict=True):
            self.extend(slot, tokens)
            self.verified[slot] = len(offer.token_ids)

    def finish(self, slot: int) -> None:
        self.take([slot])  # engines draft for requests that have ended, too
        self.allocator.finish(self.running[slot], aborted=False, visible=int(self.lengths[slot]))
        del self.running[slot]

    def take(self, slots: list[int]) -> Draft:
        trees, emitted = self.stage.runners[0].buffer.parents is not None, self.emitted[slots]
        draft = Draft.allocate(len(slots), PLAN.draft_length, trees=trees)
        rows = self._rows(torch.tensor(slots), emitted, self.verified[slots] - emitted + 1)
        self.steps.intake.settle()
        self.steps.take(RowFacts(self.allocator, [self.running[slot] for slot in slots]), rows, PLAN, _outputs(draft))
        self.steps.settle()
        return draft

    def _rows(self, slots: Tensor, emitted: Tensor, rejected: Tensor) -> EngineRows:
        return EngineRows(slots, self.lengths, self.texts, emitted, rejected)


def _outputs(draft: Draft) -> DraftOutputs:
    return DraftOutputs(draft.token_ids, draft.confidence, draft.lengths, draft.parents)


def fingerprint(engine: Any) -> tuple[float, str]:
    """Serve the trace, and return the tokens per step and a hash of all drafts."""
    digest, propose = hashlib.sha256(), engine.propose

    def hashed() -> list[Offer]:
        offers = propose()
        digest.update(repr([[[*it.token_ids], [*it.confidence], it.parents or []] for it in offers]).encode())
        return offers

    engine.propose = hashed
    return in_turn(engine, PARTS, SLOTS).tau, digest.hexdigest()


@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
@pytest.mark.parametrize("proposer", ["ngram", "retrieval"])
def test_engines_draft_as_a_replay_does(proposer, trees, monkeypatch):
    plain = Setup(proposer, "fixed", gamma=PLAN.draft_length, trees=trees, references=True)
    one, two = (replace(plain, options={proposer: {"threads": count}}) for count in (1, 2))
    with stored(CORPORA) as store:
        given = {"max_length": LENGTH, "vocab_size": VOCAB, "slots": SLOTS, "store": store}
        compiled = ReplayEngine(two, **given)
        monkeypatch.setattr(StreamSteps, "applies", staticmethod(lambda _: False))
        of_stage = ReplayEngine(one, **given)
        monkeypatch.undo()
        assert (compiled._slots.is_compiled, of_stage._slots.is_compiled) == (True, False)
        expected, *found = [fingerprint(it) for it in (of_stage, compiled, Streamed(one, store))]
        assert expected[0] > 2
        with FakeStream(3) as stream:
            found.append(fingerprint(Streamed(two, store, stream=stream, transfers=Late(stream), on_thread=True)))
        assert found == [expected] * len(found)
