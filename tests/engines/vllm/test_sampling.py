"""Sampled output has the target's distribution at temperature 1: exact probabilities against observed counts.

The target is the toy model of 16 tokens, so drafts drawn at random are accepted often enough to matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import prompts
from tests.engines.suites.served import drafts_of
from tests.engines.toy import PAIRS, PROMPT, by_frequency, distribution, filtered, model
from tests.engines.toy import p_value as p_value_of
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.test_verifier import plant

DRAFT_LENGTH = 2
DRAWN_FROM = [15, 2, 3, 4, 0, 7, 8, 9, 11, 12, 13, 5]
"""The draft vocabulary: not all of the 16 tokens, and not in order."""


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    model().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def small(kind: str, toy: Path, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests choose one-hot drafts, or drafts sampled from the stated or another distribution."""
    return toy_engine(kind, toy, engine)


def toy_engine(kind: str, toy: Path, engine: Callable[..., Engine], **settings: Any) -> Engine:
    suffix = "-probs" if kind == "v1" else ""
    return engine(
        **RUNNERS[kind],
        specplug={
            "proposer": f"uniform{suffix}",
            "extra_proposers": ["oracle"],
            **settings,
            "options": {f"uniform{suffix}": {"spread": 1.5, "tokens": DRAWN_FROM, "lies_to": "credulous"}},
        },
        draft_length=DRAFT_LENGTH,
        name=f"toy {kind}",
        model=str(toy),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=64,
    )


def p_value(
    engine: Engine, pairs: int, drafts: Sequence[str], *, seeded: bool = False, expected: Any = None, **params: Any
) -> tuple[float, dict[str, Any]]:
    """Sample pairs of tokens, drafted in the given ways in turn; return the p-value of their counts, and the totals."""
    kinds = [DRAFTS[name]() for name in drafts]
    common = {"temperature": 1.0, "max_tokens": 2 * PAIRS, "ignore_eos": True, "detokenize": False, **params}
    seeds = [{"seed": index + 1} if seeded else {} for index in range(pairs // PAIRS)]
    requested = [{**common, **seed, **kinds[index % len(kinds)]} for index, seed in enumerate(seeds)]
    found = engine.call("served.counted", prompts=[list(PROMPT)] * len(requested), params=requested)
    assert not found["faults"]
    return p_value_of(
        [answer["token_ids"] for answer in found["answers"]], distribution() if expected is None else expected
    ), found["total"]


DRAFTS: dict[str, Callable[[], dict[str, Any]]] = {
    "likely": lambda: drafts_of([by_frequency()[0]] * 2 * PAIRS),
    "unlikely": lambda: drafts_of([by_frequency()[9]] * 2 * PAIRS),
    "drawn": dict,
    "lies": lambda: {"specplug": {"tenant": "credulous"}},
}


def assert_follows_target(engine: Engine, pairs: int, drafts: Sequence[str], **how: Any) -> None:
    p, total = p_value(engine, pairs, drafts, **how)
    assert p > 1e-4
    assert total["verified"] > pairs
    assert 0 < total["accepted"] < total["verified"]


def test_the_distribution_is_the_targets(kind, small):
    """One batch has all kinds of draft; on V2 it is as large as the wrong one below, which is found out."""
    pairs = 1024 if kind == "v1" else 512
    assert_follows_target(small, pairs, ["likely", "drawn", "unlikely"], seeded=kind == "v2_async")


def test_top_k_and_top_p(kind, small):
    """Answers follow the distribution over kept tokens; any other token gives p = 0."""
    pairs = 256 if kind == "v1" else 128  # V2's kernels are interpreted
    for params, expected in filtered():
        assert_follows_target(small, pairs, ["likely", "drawn"], expected=expected, **params)


@pytest.mark.parametrize("kind", ["v1", pytest.param("v2", marks=pytest.mark.slow)], indirect=True)
def test_a_wrong_distribution_is_found_out(kind, small):
    """The same test at the smaller size detects drafts drawn from another distribution than the stated one."""
    p, total = p_value(small, 512, ["lies"])
    assert total["accepted"] > 0
    assert p < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
def test_a_verifier_of_specplugs_samples_by_the_targets_distribution(kind, toy, engine):
    served = toy_engine(kind, toy, engine, verifier="reference")
    pairs = 1024 if kind == "v1" else 512
    assert_follows_target(served, pairs, ["likely", "drawn", "unlikely"])
    served.call(plant, mutant="accepts always")
    p, _ = p_value(served, pairs, ["unlikely"])
    assert p < 1e-6, "a wrong verifier is not found out"


LOOP = [int(token) for token in prompts()[3]]
SEEDED = {"temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": True}


def texts(engine: Engine, requested: list[tuple[list[int], dict[str, Any]]]) -> list[list[int]]:
    answers = engine.call("inside.generate", prompts=[p for p, _ in requested], params=[own for _, own in requested])
    return [answer["token_ids"] for answer in answers]


FEATURES: list[dict[str, Any]] = [
    {},
    {"top_k": 20, "temperature": 0.7},
    {"top_p": 0.8, "temperature": 1.3},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    {"logprobs": 2},
]


@pytest.mark.parametrize("kind", ["v2", "v2_async"], indirect=True)
def test_a_seeds_text_is_that_without_speculation(kind, baseline, zoo):
    """Each of the features with drafts that are looked up, right and wrong, together and among others."""
    count = 3 * len(FEATURES)
    own = [{**SEEDED, "seed": n, "max_tokens": 12, **FEATURES[n % len(FEATURES)]} for n in range(count)]
    prompt_of = [LOOP if number % 2 else list(prompts()[number % len(prompts())]) for number in range(count)]
    plain = texts(baseline, list(zip(prompt_of, own, strict=True)))
    ways = [lambda text: {}, drafts_of, lambda text: drafts_of([*text[:4], 5, *text[5:]])]
    drafted = [(prompt_of[n], {**own[n], **ways[n % 3](text)}) for n, text in enumerate(plain)]
    before = zoo.call("watching.counts")["total"]
    assert texts(zoo, drafted) == plain
    free = [(LOOP, {"max_tokens": 12, "temperature": 0.5}), (LOOP, {"max_tokens": 12, "temperature": 0.0})]
    assert texts(zoo, [free[0], *drafted[:5], free[1]])[1:-1] == plain[:5]
    total = zoo.call("watching.counts")["total"]
    verified, accepted = (total[name] - before[name] for name in ("verified", "accepted"))
    assert 50 < accepted < verified
