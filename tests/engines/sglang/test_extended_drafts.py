"""Lookup behind SGLang's own draft models, a draft model and EAGLE heads, with another draft length at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.eagle import write_head
from tests.engines.launch import TINY
from tests.engines.plain import assert_greedy, greedy
from tests.engines.sglang.drafters import ROWS, answers, drafted
from tests.engines.sglang.engines import Engine

ALGORITHMS = ["EAGLE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("STANDALONE", "EAGLE3"))]
MODEL_TOKENS, LENGTH = 2, 8
EXTENDED = {
    "proposer": "hybrid",
    "policy": "ladder",
    "options": {
        "hybrid": {"model": "engine", "model_tokens": MODEL_TOKENS},
        "ladder": {"draft_lengths": [8, 8, 0, 4, 1, 8, 2]},
        "ngram": {"min_n": 1},
    },
}
"""Settings under which lookup may go on behind the two tokens of the drafter, and most steps have another length."""


@pytest.fixture(scope="session")
def draft_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return an algorithm's draft model.  A standalone one is the target itself."""
    heads = tmp_path_factory.mktemp("heads")
    found = {
        "STANDALONE": TINY,
        "EAGLE": write_head(heads / "eagle", "LlamaForCausalLMEagle"),
        "EAGLE3": write_head(heads / "eagle3", "LlamaForCausalLMEagle3"),
    }
    return found.__getitem__


@pytest.fixture
def make(engine: Callable[..., Engine], draft_of: Callable[[str], Path]) -> Callable[..., Engine]:
    """Make an engine: ``make("EAGLE", EXTENDED)``."""

    def made(algorithm: str, settings: dict[str, Any] | None = EXTENDED, **others: Any) -> Engine:
        own = {"draft_length": LENGTH, "speculative_num_steps": None} if settings else {}
        return drafted(engine, algorithm, draft_of(algorithm), settings, **own, **others)

    return made


def counts(engine: Engine) -> dict[str, Any]:
    from tests.engines.sglang.drafters import status

    (worker,) = engine.call(status)["workers"]
    found: dict[str, Any] = worker["metrics"]["by_source"]
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_greedy_text_is_the_targets(algorithm, make):
    engine = make(algorithm)
    assert_greedy(ROWS, [greedy(row) for row in ROWS], answers(engine))
    print(counts(engine))
