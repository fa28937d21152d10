"""Sampled output of SGLang's own n-gram has the target's distribution, with the test plug-in's sampling.

The temperature is 1; see `tests.engines.toy` for the distribution.  Planted mistakes in verification are found.

What is of SGLang's own drafts is slow: `test_spec_sampling` has the same of specplug's, with the same stand-in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines import toy
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine

ANSWERS = 128  # of `toy.PAIRS` pairs each


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("toy")
    toy.model().save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def small(engine: Callable[..., Engine], saved: str) -> Callable[..., Engine]:
    """Make an engine on the toy model."""

    def make(algorithm: str | None = None, **kwargs: Any) -> Engine:
        given = {"model_path": saved, "skip_tokenizer_init": True, "context_length": 64, "max_running_requests": 64}
        return engine(algorithm, draft_length=4, topk=3, name="toy", **{**given, **kwargs})

    return make


def sample(
    engine: Engine, answers: int = ANSWERS, distribution: torch.Tensor | None = None, **params: Any
) -> tuple[float, int, int]:
    """Return the p-value of the answers' pairs of tokens, and how many drafts were proposed and accepted."""
    requested = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True, **params}
    found = engine.call(inside.generate, prompts=[toy.PROMPT] * answers, params=requested)
    counts = [
        sum(answer["meta"].get(f"spec_num_{kind}_drafts", 0) for answer in found) for kind in ("proposed", "correct")
    ]
    return toy.p_value([answer["token_ids"] for answer in found], distribution), *counts


def cut(distribution: torch.Tensor, kept: Callable[[list[float]], int]) -> torch.Tensor:
    """Return a distribution [V, V] with each row's largest entries, as many as `kept` returns for the sorted row."""
    rows = []
    for row in distribution.tolist():
        ranked = sorted(row, reverse=True)
        least = ranked[kept(ranked) - 1]
        rows.append([prob if prob >= least else 0.0 for prob in row])
    found = torch.tensor(rows, dtype=torch.float64)
    return found / found.sum(-1, keepdim=True)


def test_baseline_samples_by_the_distribution(small):
    p, proposed, _ = sample(small())
    assert p > 1e-4
    assert proposed == 0


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
def test_trees_are_verified_by_the_distribution(overlap, small):
    p, proposed, accepted = sample(small("NGRAM", sampling=True, overlap=overlap))
    assert p > 1e-4
    assert 200 < accepted < proposed - 200


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_top_k_and_top_p(algorithm, small):
    """Answers follow the distribution over kept tokens; any other token gives p = 0."""
    engine = small(algorithm, sampling=algorithm is not None, overlap=False)
    by_k = cut(toy.distribution(), lambda ranked: 5)
    assert sample(engine, distribution=by_k, top_k=5)[0] > 1e-4
    by_p = cut(toy.distribution(), lambda ranked: next(n for n in range(17) if sum(ranked[:n]) >= 0.8))
    assert sample(engine, distribution=by_p, top_p=0.8)[0] > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [trees.sharpen, trees.accept_lightly])
def test_a_mistake_is_found_out(mistake, small):
    """The same test at half the size detects it."""
    engine = small("NGRAM", sampling=True, overlap=False)
    engine.inside(mistake)
    try:
        p, _, accepted = sample(engine, ANSWERS // 2)
    finally:
        assert engine.inside(trees.restore) == 1
    assert accepted > 0
    assert p < 1e-6


@pytest.mark.slow
def test_without_the_plug_in_verification_takes_the_likeliest(small):
    """This is why the plug-in exists: without it SGLang on a CPU could be tested at no temperature."""
    p, _, accepted = sample(small("NGRAM", overlap=False), ANSWERS // 4)
    assert accepted > 0
    assert p < 1e-6
