"""Sampled output has the target's law at temperature 1: exact probabilities against observed counts.

The target is a model of 16 tokens, so that drafts drawn at random are accepted often enough to matter, and so that the
law of the first tokens can be computed by a plain forward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specplug.testing.statistics import g_test
from tests.engines.vllm import inside, watching
from tests.engines.vllm.engines import Engine
from tests.engines.vllm.referee import RUNNERS, fields, kind, prompts, told, zoo

__all__ = ["kind", "zoo"]

VOCAB, PROMPT = 16, [3, 9, 4, 11, 3, 9]
WIDTH, TOKENS = 2, 3  # the first token is the prefill's, the next two are drafted
SAMPLES = 1024


@functools.cache
def model() -> Any:
    """One layer, with a law that is far from uniform and far from certain."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.18,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@functools.cache
def law() -> torch.Tensor:
    """Return [V ** TOKENS] float64, the probability of each answer's first tokens."""
    probs = torch.ones(1, dtype=torch.float64)
    outputs = torch.zeros(1, 0, dtype=torch.int64)
    for _ in range(TOKENS):
        contexts = torch.cat([torch.tensor(PROMPT).expand(len(outputs), -1), outputs], 1)
        with torch.inference_mode():
            laws = model()(input_ids=contexts).logits[:, -1].double().softmax(-1)
        probs = (probs[:, None] * laws).flatten()
        outputs = torch.cat([outputs.repeat_interleave(VOCAB, 0), torch.arange(VOCAB).repeat(len(outputs))[:, None]], 1)
    return probs


def ranked(rank: int) -> list[int]:
    """Return a draft of the token of one rank behind each of the drafts before it; the first is the prefill's."""
    output: list[int] = []
    for _ in range(TOKENS):
        with torch.inference_mode():
            logits = model()(input_ids=torch.tensor([PROMPT + output])).logits[0, -1]
        output.append(int(logits.argsort(descending=True)[rank]))
    return output


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    model().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def small(kind: str, toy: Path, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests choose between sampled drafts, of a stated law or of another one, and one-hot ones."""
    suffix = "-probs" if kind == "v1" else ""
    return engine(
        **RUNNERS[kind],
        specplug={
            "proposer": f"uniform{suffix}",
            "extra_proposers": ["oracle", f"liar{suffix}"],
            "options": {f"uniform{suffix}": {"spread": 0.5}, f"liar{suffix}": {"spread": 1.5}},
        },
        width=WIDTH,
        name=f"toy {kind}",
        model=str(toy),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=64,
    )


def sample(llm: Any, prompt: list[int], count: int, params: dict[str, Any], seeded: bool) -> dict[str, Any]:
    """Draw answers; return the distinct ones with their numbers, and what was counted meanwhile."""
    stage = watching.drafting(llm).stage
    before = stage.metrics.snapshot()
    asked = [inside.sampling({**params, "seed": index + 1 if seeded else None}) for index in range(count)]
    found: dict[tuple[int, ...], int] = {}
    for output in llm.generate([{"prompt_token_ids": prompt}] * count, asked, use_tqdm=False):
        answer = tuple(output.outputs[0].token_ids)
        found[answer] = found.get(answer, 0) + 1
    return {
        "answers": [[list(answer), times] for answer, times in found.items()],
        **(stage.metrics.snapshot() - before).as_dict(),
    }


def p_value(engine: Engine, own: dict[str, Any], *, seeded: bool = False) -> tuple[float, dict[str, Any]]:
    """Return the p-value of the G-test, and what was counted."""
    params = {"temperature": 1.0, "max_tokens": TOKENS + 1, "ignore_eos": True, "detokenize": False, **own}
    found = engine.call(sample, prompt=PROMPT, count=SAMPLES, params=params, seeded=seeded)
    counts = torch.zeros(VOCAB**TOKENS)
    for answer, times in found["answers"]:
        place = 0
        for token in answer[:TOKENS]:
            place = place * VOCAB + token
        counts[place] += times
    assert not found["faults"]
    assert counts.sum() == SAMPLES
    return g_test(counts.numpy(), (law() / law().sum()).numpy()), found["total"]


DRAFTS: dict[str, Callable[[], dict[str, Any]]] = {
    "likely": lambda: told(ranked(0)),
    "unlikely": lambda: told(ranked(7)),
    "drawn": dict,
}


@pytest.mark.parametrize("drafts", DRAFTS)
def test_the_law_is_the_targets(drafts, small):
    assert_lawful(small, drafts, seeded=False)


@pytest.mark.parametrize("drafts", ["drawn"])
def test_the_law_over_distinct_seeds(drafts, small):
    """Requests with seeds of their own take the engine's other path to random numbers."""
    assert_lawful(small, drafts, seeded=True)


def assert_lawful(small: Engine, drafts: str, *, seeded: bool) -> None:
    p, total = p_value(small, DRAFTS[drafts](), seeded=seeded)
    assert p > 1e-4
    assert total["verified"] > SAMPLES
    assert 0 < total["accepted"] < total["verified"]


def test_a_wrong_law_is_found_out(kind, small):
    """Drafts drawn from another law than the one that is stated: the same test at the same size must see it."""
    liar = "liar-probs" if kind == "v1" else "liar"
    p, total = p_value(small, fields(proposer=liar))
    assert total["accepted"] > 0
    assert p < 1e-6


LOOP = [int(token) for token in prompts()[3]]
SEEDED = {"temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": True}


def texts(engine: Engine, asked: list[tuple[list[int], dict[str, Any]]]) -> list[list[int]]:
    answers = engine.call("inside.generate", prompts=[p for p, _ in asked], params=[own for _, own in asked])
    return [answer["token_ids"] for answer in answers]


def test_seeds_are_reproducible(zoo):
    """The same seed gives the same answer, alone and among others: drafts are the request's own doing."""
    others = [(list(prompt), {"temperature": 1.0, "max_tokens": 20}) for prompt in prompts()[:5]]
    [alone] = texts(zoo, [(LOOP, SEEDED)])
    assert texts(zoo, [(LOOP, SEEDED)]) == [alone]
    among = texts(zoo, [*others[:3], (LOOP, SEEDED), *others[3:], (LOOP, {**SEEDED, "seed": 8})])
    assert among[3] == alone
    assert among[-1] != alone


def several(llm: Any, prompt: list[int], params: dict[str, Any]) -> list[list[int]]:
    """Return all answers of one request."""
    [output] = llm.generate([{"prompt_token_ids": prompt}], [inside.sampling(params)], use_tqdm=False)
    return [list(completion.token_ids) for completion in output.outputs]


def test_several_answers_to_one_request(zoo):
    """vLLM makes n requests of one; each has a slot, drafts and a seed of its own."""
    found = zoo.call(several, prompt=LOOP, params={**SEEDED, "n": 4})
    assert len({tuple(answer) for answer in found}) == 4
    assert found == zoo.call(several, prompt=LOOP, params={**SEEDED, "n": 4})
