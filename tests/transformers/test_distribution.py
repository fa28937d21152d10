"""Sampled output has the target's distribution, on a real model: exact probabilities against observed counts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specplug.interfaces import PluginContext, Proposer
from specplug.plugins.specs import ProposerSpec
from specplug.testing import g_test
from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution, ProposerCaps
from specplug.types.draft import Draft
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.transformers import toys

PROMPT = (3, 9, 4, 11, 3, 9)
TOKENS, TOP_K = 3, 4
SAMPLES = 2048


@functools.cache
def tiny_model() -> Any:
    """One layer with hidden size 16, and a distribution that is far from uniform and far from certain."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        initializer_range=0.35,
    )
    return LlamaForCausalLM(config).eval()


@functools.cache
def distribution_after(output: tuple[int, ...]) -> tuple[tuple[int, ...], Tensor]:
    """Return the kept tokens after prompt and output, most likely first, and their probabilities by a plain forward."""
    with torch.no_grad():
        logits = tiny_model()(input_ids=torch.tensor([PROMPT + output])).logits[0, -1].double()
    top = logits.topk(TOP_K)
    return tuple(top.indices.tolist()), top.values.softmax(0)


@functools.cache
def exact_distribution() -> tuple[dict[tuple[int, ...], int], list[float]]:
    """The 64 outcomes by their tokens, and their probabilities."""
    places, probs = {}, []
    for ranks in itertools.product(range(TOP_K), repeat=TOKENS):
        output, prob = (), 1.0
        for rank in ranks:
            tokens, distribution = distribution_after(output)
            prob *= float(distribution[rank])
            output += (tokens[rank],)
        places[output] = len(probs)
        probs.append(prob)
    assert abs(sum(probs) - 1) < 1e-9
    return places, probs


class Ranked(Proposer):
    """Drafts the kept token of one rank, always."""

    rank = 0

    def __init__(self, context: PluginContext) -> None: ...

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        for row, (slot, length) in enumerate(zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True)):
            output = tuple(batch.tokens[slot, len(PROMPT) : length].tolist())
            drafted: list[int] = []
            for place in range(min(int(limits[row]), TOKENS - 1 - len(output))):
                tokens, _ = distribution_after(output + tuple(drafted))
                drafted.append(self.choose(draft, row, place, tokens))
            draft.set_row(row, drafted, 0.5)

    def choose(self, draft: Draft, row: int, place: int, tokens: tuple[int, ...]) -> int:
        return tokens[self.rank]


class Unlikely(Ranked):
    rank = TOP_K - 1


class Drawn(Ranked):
    """Draws its drafts from its own distribution, and fills that in."""

    weights = (0.1, 0.2, 0.3, 0.4)

    def __init__(self, context: PluginContext) -> None:
        self._stream = torch.Generator().manual_seed(3)

    def choose(self, draft: Draft, row: int, place: int, tokens: tuple[int, ...]) -> int:
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
}


def p_value(proposer: str, *, seeded: bool, verifier: str = "reference", first_seed: int = 0) -> float:
    """Sample `SAMPLES` outputs and return the p-value of the G-test against the exact distribution."""
    engine = Engine(
        tiny_model(),
        settings={"proposer": proposer, "policy": "fixed", "verifier": verifier, "num_speculative_tokens": TOKENS - 1},
        max_num_seqs=256,
        registry=toys.make_registry(list(PROPOSERS.values())),
    )
    requests = [
        GenerateRequest(
            prompt=PROMPT,
            params=SamplingParams(
                max_tokens=TOKENS,
                temperature=1.0,
                top_k=TOP_K,
                ignore_eos=True,
                seed=first_seed + index if seeded else None,
            ),
        )
        for index in range(SAMPLES)
    ]
    places, probs = exact_distribution()
    counts = [0] * len(probs)
    for output in engine.generate(requests):
        if output.token_ids not in places:
            return 0.0  # top-k forbids it
        counts[places[output.token_ids]] += 1
    total = engine.metrics.snapshot().total
    engine.close()
    assert total.proposed > SAMPLES, "too little was drafted"
    assert not engine.metrics.snapshot().faults
    return g_test(counts, probs)


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
    ],
)
def test_a_lossy_verifier_is_found_out(mutant, proposer):
    """The same test at the same size rejects a wrong distribution."""
    assert p_value(proposer, seeded=False, verifier=mutant) < 1e-6


def test_drafting_from_another_distribution_than_stated_is_found_out(monkeypatch):
    """A wrong `draft_probs` is silently lossy: the test must see it."""
    stated = Drawn.choose

    def lies(self: Drawn, draft: Draft, row: int, place: int, tokens: tuple[int, ...]) -> int:
        stated(self, draft, row, place, tokens)
        return tokens[-1]

    monkeypatch.setattr(Drawn, "choose", lies)
    assert p_value("drawn badly", seeded=False) < 1e-6
