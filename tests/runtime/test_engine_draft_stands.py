"""The draft of the engine's own drafter stands in rows that the proposer cannot draft for."""

from __future__ import annotations

import pytest
import torch

from specplug.assembly import build_draft_stage
from specplug.interfaces import PluginContext
from specplug.pipeline.stream.buffers import DraftOutputs, EngineRows
from specplug.plugins.registry import default_registry
from specplug.runtime.stream_steps import StreamSteps
from specplug.settings.model import Settings
from specplug.types.caps import EngineCaps
from specplug.types.plan import StepPlan
from specplug.types.request import RequestOptions
from tests.runtime.oracle import CPU, DRAFT_LENGTH, LENGTH, SLOTS, VOCAB, Engine


@pytest.mark.parametrize("cap", [None, 1])
def test_before_a_text_is_ingested(cap):
    context = PluginContext(
        EngineCaps(DRAFT_LENGTH, engine_tokens=2), vocab_size=VOCAB, max_slots=SLOTS, max_length=LENGTH, device=CPU
    )
    stage = build_draft_stage(Settings(proposer="ngram", policy="fixed"), default_registry(), context)
    engine = Engine(stage)
    one = torch.ones(1, dtype=torch.int32)
    rows = EngineRows(torch.tensor([0]), engine.lengths, engine.texts, one, 0 * one, engine_ids=torch.tensor([[3, 2]]))
    numbers = torch.zeros(SLOTS, dtype=torch.int32)
    outputs = DraftOutputs(
        torch.zeros(SLOTS, DRAFT_LENGTH, dtype=torch.int32), lengths=numbers, from_engine=1 - numbers
    )
    engine.steps = steps = StreamSteps(stage, engine.allocator.slots, LENGTH, VOCAB, CPU, like=(rows, outputs))
    engine.start("r", 0, [1, 2, 1, 2, 1, 2], options=RequestOptions(num_speculative_tokens=cap))
    stage.runners[0].generations[0] = 0  # as long as the thread that ingests its text has not done so
    steps.take(engine._facts_of(["r"]), rows, StepPlan(DRAFT_LENGTH), outputs)
    count = 2 if cap is None else cap
    assert [int(outputs.lengths[0]), int(outputs.from_engine[0])] == [count, count]
    assert outputs.ids[0, :count].tolist() == [3, 2][:count]
    engine.close()
