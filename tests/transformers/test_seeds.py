"""A seed decides a sampled text, whoever else is served: under policies that learn, and with remembered answers."""

from __future__ import annotations

from typing import Any

import pytest

from specplug_transformers import Engine, GenerateRequest, RequestOutput, SamplingParams
from tests.transformers import toys


def ask(engine: Engine, prompt: Any, **params: Any) -> RequestOutput:
    requested = SamplingParams(temperature=1.0, ignore_eos=True, **params)
    return engine.generate([GenerateRequest(prompt=prompt, params=requested)])[0]


def texts(engine: Engine) -> list[set[tuple[int, ...]]]:
    """Ask for three seeds five times each, in turns with others; return the texts that each gave."""
    found: list[set[tuple[int, ...]]] = [set() for _ in range(3)]
    for _ in range(5):
        for seed, prompt in enumerate(toys.prompts(3)):
            found[seed].add(ask(engine, prompt, max_tokens=32, top_k=3, seed=seed).token_ids)
            ask(engine, prompt, max_tokens=8, top_k=3)
    return found


@pytest.mark.parametrize("policy", ["fixed", "adaptive", "batch"])
def test_a_seed_gives_the_text_without_speculation_every_time(make_engine, policy):
    plain = texts(make_engine(mode="off"))
    engine = make_engine(proposer="ngram", policy=policy, options={"ngram": {"min_survival": 0.1}})
    assert [len(several) for several in plain] == [1, 1, 1]
    assert texts(engine) == plain
    metrics = engine.metrics.snapshot()
    assert not metrics.faults
    assert metrics.total.verified > 0
    if policy != "batch":  # which drafts as it finds the time of steps
        assert metrics.by_source["ngram/response memory"].accepted > 100, "a seed's own answers are remembered"


# -- among others ------------------------------------------------------------------------------------------------------

TEXT = [5, 9, 33, 5, 9, 33]
DRAFTS = [40, 41, 33, 5, 9, 33, 5, 9] * 4


def sampled(engine, prompt=TEXT, seed=1, name="mine", others=0):
    """Return the text of one request served among others."""
    requests = [
        GenerateRequest(prompt=other, params=SamplingParams(max_tokens=5 + index, temperature=0.9, seed=index))
        for index, other in enumerate(toys.prompts(others))
    ]
    params = SamplingParams(max_tokens=24, temperature=1.0, top_k=8, seed=seed, ignore_eos=True)
    requests.insert(others // 2, GenerateRequest(prompt=prompt, params=params, request_id=name))
    return engine.generate(requests)[others // 2].token_ids


@pytest.fixture
def engine(make_engine):
    toys.Oracle.answers = {"mine": DRAFTS, "again": DRAFTS}
    return make_engine(proposer="oracle", max_num_seqs=3, prefill_chunk=6)


def test_whoever_else_is_served(engine):
    expected = sampled(engine)
    assert [sampled(engine, name="again", others=others) for others in (0, 1, 6)] == [expected] * 3


def test_other_seeds_give_other_texts(engine):
    assert len({sampled(engine, seed=seed) for seed in (1, 2, 3, -4, 2**62, None, None)}) == 7
