"""Sampled text depends on the seed alone, not on who else is served; see test_memory_seeds.py for drafts."""

from __future__ import annotations

import pytest

from specplug_transformers import GenerateRequest, SamplingParams
from tests.transformers.toys import Oracle, prompts

PROMPT = [5, 9, 33, 5, 9, 33]
DRAFTS = [40, 41, 33, 5, 9, 33, 5, 9] * 4


def sampled(engine, prompt=PROMPT, seed=1, name="mine", others=0):
    """Return the text of one request served among others."""
    requests = [
        GenerateRequest(prompt=other, params=SamplingParams(max_tokens=5 + index, temperature=0.9, seed=index))
        for index, other in enumerate(prompts(others))
    ]
    params = SamplingParams(max_tokens=24, temperature=1.0, top_k=8, seed=seed, ignore_eos=True)
    requests.insert(others // 2, GenerateRequest(prompt=prompt, params=params, request_id=name))
    return engine.generate(requests)[others // 2].token_ids


@pytest.fixture
def engine(make_engine):
    Oracle.answers = {"mine": DRAFTS, "again": DRAFTS}
    return make_engine(proposer="oracle", max_num_seqs=3, prefill_chunk=6)


def test_the_same_seed_gives_the_same_text(engine):
    assert sampled(engine) == sampled(engine, name="again")


@pytest.mark.parametrize("others", [1, 2, 6])
def test_whoever_else_is_served(engine, others):
    assert sampled(engine) == sampled(engine, others=others)


def test_other_seeds_give_other_texts(engine):
    assert len({sampled(engine, seed=seed) for seed in (1, 2, 3, -4, 2**62)}) == 5


def test_without_a_seed_every_request_has_its_own(engine):
    assert sampled(engine, seed=None) != sampled(engine, seed=None)


def test_preemption_does_not_change_the_text(engine):
    expected = sampled(engine)
    params = SamplingParams(max_tokens=24, temperature=1.0, top_k=8, seed=1, ignore_eos=True)
    engine.add(GenerateRequest(prompt=PROMPT, params=params, request_id="mine"))
    outputs = []
    for output in engine.run():
        outputs.append(output)
        if len(outputs) in (2, 3, 7):
            engine.preempt("mine")
    assert outputs[-1].token_ids == expected
    assert len(outputs) > 7


def test_greedy_needs_no_seed(make_engine):
    engine = make_engine()
    texts = {sampled_greedily(engine, seed) for seed in (None, 1, 2)}
    assert len(texts) == 1


def sampled_greedily(engine, seed):
    [output] = engine.generate([GenerateRequest(prompt=PROMPT, params=SamplingParams(max_tokens=12, seed=seed))])
    return output.token_ids
