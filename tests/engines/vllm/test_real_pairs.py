"""Real models of two tokenizers on vLLM: greedy output is the target's own, and samples are drafted for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import real_models
from tests.engines import processes
from tests.engines.engines import Engine
from tests.engines.vllm.launch import RUNNERS

SAMPLED = {"temperature": 0.7, "max_tokens": real_models.MAX_TOKENS}

KINDS = [("v1", "crosstok"), ("v2_async", "crosstok-device")]


@pytest.fixture(autouse=True)
def _slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such models and their vocabularies take their time to load on a busy machine."""
    monkeypatch.setattr(processes, "START_SECONDS", 1200.0)


@real_models.needs_models
@pytest.mark.slow
@pytest.mark.parametrize("pair", real_models.PAIRS, ids="-".join)
@pytest.mark.parametrize(("kind", "proposer"), KINDS)
def test_a_pair(kind: str, proposer: str, pair: tuple[str, str], engine: Callable[..., Engine]) -> None:
    target, draft = pair
    paired = engine(
        **RUNNERS[kind],
        specplug=real_models.settings(draft, proposer),
        name=f"{proposer} {kind} {target}",
        model=real_models.path(target),
        max_num_seqs=4,
        max_model_len=256,
        draft_length=4,
    )
    given = real_models.prompts(target)
    params = [{"temperature": 0.0, "max_tokens": real_models.MAX_TOKENS}] * len(given)
    found = paired.call("served.counted", prompts=given, params=params)
    print(kind, pair, found["total"])
    assert not found["faults"]
    assert found["total"]["tau"] > 1.2
    real_models.assert_greedy(target, [answer["token_ids"] for answer in found["answers"]])
    found = paired.call("served.counted", prompts=given, params=[SAMPLED] * len(given))
    print(kind, pair, found["total"])
    assert not found["faults"]
    assert found["total"]["accepted"] > 0
