"""Requests with a seed and a temperature repeat their output and keep its distribution, though responses are stored."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing import g_test
from specplug.types.request import Request
from specplug_transformers import Engine, GenerateRequest, RequestOutput, SamplingParams
from tests.transformers import toys
from tests.transformers.test_distribution import PROMPT, TOKENS, TOP_K, exact_distribution, tiny_model

SAMPLES = 2048


@pytest.fixture
def everything_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: whatever has a seed reads and feeds the memory, too, and teaches what matches are worth."""
    monkeypatch.setattr(Request, "may_share", property(lambda self: self.options.store))
    monkeypatch.setattr("specplug.match.proposer._is_seeded", lambda request: False)


def ask(engine: Engine, prompt: Any, **params: Any) -> RequestOutput:
    requested = SamplingParams(temperature=1.0, ignore_eos=True, **params)
    return engine.generate([GenerateRequest(prompt=prompt, params=requested)])[0]


def texts(make_engine: Any) -> tuple[list[int], Any]:
    """Ask for three seeds ten times each, in turns with others; return how many texts each gave, and the counts."""
    engine = make_engine(proposer="ngram", policy="fixed", options={"ngram": {"min_survival": 0.1}})
    found: list[set[tuple[int, ...]]] = [set() for _ in range(3)]
    for _ in range(10):
        for seed, prompt in enumerate(toys.prompts(3)):
            found[seed].add(ask(engine, prompt, max_tokens=32, top_k=3, seed=seed).token_ids)
            ask(engine, prompt, max_tokens=8, top_k=3)
    return [len(several) for several in found], engine.metrics.snapshot()


def test_a_seed_gives_the_same_text_ten_times(make_engine):
    counts, metrics = texts(make_engine)
    assert counts == [1, 1, 1]
    assert metrics.by_source["ngram/own text"].proposed > 0
    assert metrics.by_source["ngram/response memory"].proposed > 0, "the others are drafted from what was said before"
    assert not metrics.faults


@pytest.mark.usefixtures("everything_shared")
def test_shared_memory_would_change_texts(make_engine):
    counts, _ = texts(make_engine)
    assert max(counts) > 1


def p_value() -> float:
    """Ask for `SAMPLES` seeds twice each; return the p-value of the second answers under the target's distribution.

    Each seed has a tenant of its own, so that the only remembered answer that it could see is its own first one.
    """
    engine = Engine(
        tiny_model(),
        settings={
            "proposer": "ngram",
            "policy": "fixed",
            "num_speculative_tokens": TOKENS,
            "faults": {"host_deadline_ms": None},
            "options": {"ngram": {"min_survival": 0.0}},
        },
        max_num_seqs=256,
        registry=toys.make_registry(),
    )
    params = {"max_tokens": TOKENS, "temperature": 1.0, "top_k": TOP_K, "ignore_eos": True}
    requests = [
        GenerateRequest(
            prompt=PROMPT, params=SamplingParams(**params, seed=seed), specplug={"tenant": f"tenant {seed}"}
        )
        for seed in range(SAMPLES)
    ]
    places, probs = exact_distribution()
    counts = [0] * len(probs)
    engine.generate(requests)
    for output in engine.generate(requests):
        counts[places[output.token_ids]] += 1
    metrics = engine.metrics.snapshot()
    engine.close()
    assert metrics.total.proposed > SAMPLES
    assert not metrics.faults
    return g_test(counts, probs)


def test_the_distribution_of_repeated_seeds_is_the_targets():
    assert p_value() > 1e-4


@pytest.mark.usefixtures("everything_shared")
def test_shared_memory_would_change_the_distribution():
    """A remembered answer of the same seed meets the same random numbers: the same test must see it."""
    assert p_value() < 1e-6
