"""Sampled output of models with recurrent state: exact probabilities of whole answers against observed counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.recurrent_answers import LENGTH, PROMPT, TEMPERATURE, VOCAB, drafts, p_value
from tests.engines.recurrent_models import save
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_recurrent import MODELS, change_lengths, keep_states

FAST = ("lfm2",)
SPLIT = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in MODELS]


@pytest.fixture
def served(engine: Callable[..., Engine], name: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.getbasetemp() / f"{name} of four tokens"
    folder.mkdir(exist_ok=True)
    arguments: dict[str, Any] = {
        "draft_length": 4,
        "overlap": True,
        "sampling": True,
        "model_path": save(name, folder, VOCAB),
        "skip_tokenizer_init": True,
        "context_length": 64,
        "max_running_requests": 64,
        "disable_radix_cache": True,
    }
    return engine("SPECPLUG", name=f"sampled {name}", **arguments)


def sample(served: Engine, name: str) -> tuple[float, int, int]:
    """Return the p-value of the answers, and how many draft tokens were proposed and accepted."""
    params = [
        {
            "temperature": TEMPERATURE,
            "max_new_tokens": LENGTH,
            "ignore_eos": True,
            "custom_params": {"specplug_references": [*PROMPT, *draft], "specplug_store": False},
        }
        for draft in drafts(name)
    ]
    found = served.call(inside.generate, prompts=[PROMPT] * len(params), params=params)
    counts = [sum(answer["meta"][f"spec_num_{kind}_drafts"] for answer in found) for kind in ("proposed", "correct")]
    return p_value(name, [answer["token_ids"] for answer in found]), *counts


@pytest.mark.parametrize("name", SPLIT)
def test_answers_have_the_models_distribution(name, served):
    served.inside(change_lengths)
    try:
        p, proposed, accepted = sample(served, name)
    finally:
        served.inside(trees.restore)
    assert p > 1e-4
    assert 100 < accepted < proposed - 100

    if name == "nemotron_h":  # so many answers show its mistakes at p = 1e-6 only; `test_recurrent` sees them
        return
    served.inside(keep_states)
    try:
        p, _, _ = sample(served, name)
    finally:
        served.inside(trees.restore)
    assert p < 1e-6
