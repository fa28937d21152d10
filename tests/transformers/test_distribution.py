"""Sampled output has the target's distribution, on a real model: exact probabilities against observed counts."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.specs import ProposerSpec
from specplug.types.caps import Distribution, ProposerCaps
from specplug.types.step import Draft, EngineBatch
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.transformers import toys
from tests.transformers.conftest import assert_plain, exact_distribution, g_test_of, kept_after, requests_of

PROMPT = (3, 9, 4, 11, 3, 9)
TOKENS, TOP_K = 3, 4
SAMPLES = 2048


@functools.cache
def tiny_model() -> Any:
    return toys.one_layer(16, 11, 32)


@functools.cache
def kept(output: tuple[int, ...]) -> list[int]:
    return kept_after(tiny_model(), PROMPT + output, TOP_K)[0]


@functools.cache
def distribution() -> dict[tuple[int, ...], float]:
    return exact_distribution(tiny_model(), PROMPT, TOKENS, TOP_K)


class Ranked(Proposer):
    """Drafts the kept token of one rank, always."""

    rank = 0

    def __init__(self, context: PluginContext) -> None: ...

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, (slot, length) in enumerate(zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True)):
            output = tuple(batch.tokens[slot, len(PROMPT) : length].tolist())
            drafted: list[int] = []
            for place in range(min(int(limits[row]), TOKENS - 1 - len(output))):
                drafted.append(self.choose(draft, row, place, kept(output + tuple(drafted))))
            draft.set_row(row, drafted, 0.5)

    def choose(self, draft: Draft, row: int, place: int, tokens: list[int]) -> int:
        return tokens[self.rank]


class Unlikely(Ranked):
    rank = TOP_K - 1


class Drawn(Ranked):
    """Draws its drafts from its own distribution, and fills that in."""

    weights = (0.1, 0.2, 0.3, 0.4)

    def __init__(self, context: PluginContext) -> None:
        self._stream = torch.Generator().manual_seed(3)

    def choose(self, draft: Draft, row: int, place: int, tokens: list[int]) -> int:
        draft.draft_probs[row, place] = 0.0
        for token, weight in zip(tokens, self.weights, strict=True):
            draft.draft_probs[row, place, token] = weight
        return tokens[int(torch.tensor(self.weights).multinomial(1, generator=self._stream))]


class DrawnWell(Drawn):
    weights = (0.6, 0.2, 0.1, 0.1)


_PROBS = ProposerCaps(distribution=Distribution.PROBS)
PROPOSERS = {
    "likely": ProposerSpec(name="likely", factory=Ranked, summary="a toy", caps=ProposerCaps()),
    "unlikely": ProposerSpec(name="unlikely", factory=Unlikely, summary="a toy", caps=ProposerCaps()),
    "drawn badly": ProposerSpec(name="drawn badly", factory=Drawn, summary="a toy", caps=_PROBS),
    "drawn well": ProposerSpec(name="drawn well", factory=DrawnWell, summary="a toy", caps=_PROBS),
    "tiny-model": toys.testkit("tiny-model"),  # a draft model over a part of the vocabulary
}


def make_engine(proposer: str, **settings: Any) -> Engine:
    return Engine(
        tiny_model(),
        settings={"proposer": proposer, "policy": "fixed", "num_speculative_tokens": TOKENS - 1, **settings},
        max_num_seqs=256,
        registry=toys.make_registry(list(PROPOSERS.values())),
    )


def request(seed: int | None, **fields: Any) -> GenerateRequest:
    params = SamplingParams(max_tokens=TOKENS, temperature=1.0, top_k=TOP_K, ignore_eos=True, seed=seed)
    return GenerateRequest(prompt=PROMPT, params=params, specplug=fields)


def p_value(proposer: str, *, seeded: bool, verifier: str = "reference") -> float:
    """Sample `SAMPLES` outputs and return their p-value."""
    engine = make_engine(proposer, verifier=verifier)
    outputs = engine.generate([request(seed if seeded else None) for seed in range(SAMPLES)])
    counts = engine.metrics.snapshot()
    engine.close()
    assert counts.total.proposed > SAMPLES, "too little was drafted"
    assert not counts.faults
    return g_test_of([output.token_ids for output in outputs], distribution())


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "distinct seeds"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_distribution_is_the_targets(proposer, seeded):
    assert p_value(proposer, seeded=seeded) > 1e-4


@pytest.mark.parametrize(
    ("mutant", "proposer"),
    [
        ("reused random number", "unlikely"),
        ("resampling from p", "drawn badly"),
        ("lenient threshold", "unlikely"),
        ("off-by-one bonus", "likely"),
        ("uniform draft law", "drawn well"),
        ("uniform draft law", "tiny-model"),
    ],
)
def test_a_lossy_verifier_is_found_out(mutant, proposer):
    """The same test at the same size rejects a wrong distribution."""
    assert p_value(proposer, seeded=False, verifier=mutant) < 1e-6


def test_drafting_from_another_distribution_than_stated_is_found_out(monkeypatch):
    """A wrong `draft_probs` is silently lossy: the test must see it."""
    stated = Drawn.choose

    def lies(self: Drawn, draft: Draft, row: int, place: int, tokens: list[int]) -> int:
        stated(self, draft, row, place, tokens)
        return tokens[-1]

    monkeypatch.setattr(Drawn, "choose", lies)
    assert p_value("drawn badly", seeded=False) < 1e-6


def test_the_distribution_of_repeated_seeds_is_the_targets():
    """A remembered answer of the same seed meets the same random numbers again; each seed has a tenant of its own."""
    settings = {"faults": {"host_deadline_ms": None}, "options": {"ngram": {"min_survival": 0.0}}}
    engine = make_engine("ngram", **settings)
    requests = [request(seed, tenant=f"tenant {seed}") for seed in range(SAMPLES)]
    first, again = ([output.token_ids for output in engine.generate(requests)] for _ in range(2))
    counts = engine.metrics.snapshot()
    engine.close()
    assert again == first
    assert counts.by_source["ngram/response memory"].accepted > SAMPLES // 8
    assert not counts.faults
    assert g_test_of(again, distribution()) > 1e-4


def test_a_seed_decides_the_text_whatever_is_drawn():
    """Drafts of a stated distribution are verified as one-hot in rows with a seed."""
    found = []
    for mode in ("off", "on"):
        engine = make_engine("drawn well", mode=mode)
        outputs = engine.generate([request(seed if seed % 4 else None) for seed in range(256)])
        found.append([output.token_ids for seed, output in enumerate(outputs) if seed % 4])
        total = engine.metrics.snapshot().total
        engine.close()
    assert found[0] == found[1]
    assert total.verified > 256


def test_greedy_output_of_a_draft_model_is_the_targets(llama):
    spec = PROPOSERS["tiny-model"]
    settings = {"proposer": spec.name, "policy": "fixed", "num_speculative_tokens": 4}
    engine = Engine(llama, settings=settings, registry=toys.make_registry([spec]))
    prompts = [[5, 9, 33], [7], list(range(20))]
    outputs = engine.generate(requests_of(prompts, max_tokens=24, ignore_eos=True))
    assert_plain(llama, prompts, outputs, 24)
    assert engine.metrics.snapshot().total.verified > 0
    engine.close()
