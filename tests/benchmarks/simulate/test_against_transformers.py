"""Steps of the real embedded engine, predicted from its outputs: exactly, for constant lengths of a plain lookup."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.simulate.modes import modes
from benchmarks.simulate.recording import record
from specplug.tools.replay.engine import Setup
from specplug.tools.replay.items import TokenItem
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.benchmarks.simulate.tools import fixed, run
from tests.transformers.toys import VOCAB, build_model

GAMMA, MAX_TOKENS, REQUESTS = 6, 120, 20
LOOKUP = {"ngram-reference": {"min_n": 1}}


@pytest.fixture(scope="module")
def served():
    """Return a function that serves random prompts with a constant draft length: their items, and the counts."""
    model, chance = build_model("llama"), np.random.default_rng(0)
    prompts = [chance.integers(3, VOCAB, 12).tolist() for _ in range(REQUESTS)]

    def serve(gamma: int, batch: int):
        settings = {
            "proposer": "ngram-reference",
            "policy": "fixed",
            "num_speculative_tokens": gamma,
            "options": LOOKUP,
            "faults": {"host_deadline_ms": None},  # a busy machine must not change the counts
        }
        engine = Engine(model, settings=settings, max_num_seqs=batch)
        params = SamplingParams(max_tokens=MAX_TOKENS)
        outputs = engine.generate([GenerateRequest(prompt=prompt, params=params) for prompt in prompts])
        counts = engine.metrics.snapshot().total
        engine.close()
        pairs = zip(prompts, outputs, strict=True)
        items = [
            TokenItem(str(index), np.array(prompt, np.int32), (), np.array(output.token_ids, np.int32))
            for index, (prompt, output) in enumerate(pairs)
        ]
        return items, counts

    return serve


@pytest.mark.parametrize(("gamma", "batch"), [(1, 1), (3, 4), (GAMMA, 1), (GAMMA, REQUESTS)])
def test_the_number_of_steps_is_predicted_exactly(served, gamma, batch):
    items, counts = served(gamma, batch)
    trajectories = record(items, Setup("ngram-reference", gamma=GAMMA, options=LOOKUP), vocab_size=VOCAB)
    found = run(
        trajectories, fixed(gamma), replace(modes(GAMMA)["padded"], lag=0, gamma=gamma), concurrency=batch
    ).steps
    assert found.rows.sum() == counts.target_steps - REQUESTS  # the engine counts prefill, which emits the first token
    assert found.emitted.sum() == counts.emitted - REQUESTS
    assert counts.accepted > 30
