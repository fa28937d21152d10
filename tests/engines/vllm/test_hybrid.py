"""Lookup and a draft model under one decision: greedy output equals that of unmodified vLLM."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engines import crosstok
from tests.engines.engines import Engine
from tests.engines.plain import assert_greedy
from tests.engines.vllm.referee import MAX_TOKENS, RUNNERS, Answers, prompts

PROMPTS = [list(prompt) for prompt in prompts()]
SETTINGS = {**crosstok.settings(), "proposer": "hybrid"}


@pytest.fixture(scope="session")
def hybrid(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine with lookup and a draft model of another tokenizer."""
    return engine(**RUNNERS[kind], specplug=SETTINGS, name=f"hybrid {kind}", max_num_seqs=32, draft_length=4)


@pytest.mark.parametrize("kind", ["v1"], indirect=True)
def test_greedy(hybrid: Engine, truth: Answers) -> None:
    found = hybrid.call("watching.counted", prompts=PROMPTS, params=[{"max_tokens": MAX_TOKENS}] * len(PROMPTS))
    assert_greedy(PROMPTS, truth, found["result"])
    assert not found["faults"]
    parts = dict.fromkeys(("ngram", "crosstok"), 0)
    for name, counts in found["by_source"].items():
        if name.startswith("hybrid/"):
            parts[name.split("/")[1]] += counts["accepted"]
    assert min(parts.values()) > 0  # the model runs at least in the first steps, whose times are not known yet
    assert found["total"]["tau"] > 1.3
