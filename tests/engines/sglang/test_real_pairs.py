"""Real models of two tokenizers on SGLang: greedy output is the target's own, and samples are drafted for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import real_models
from tests.engines import processes
from tests.engines.sglang import inside, watching
from tests.engines.sglang.engines import Engine


@pytest.fixture(autouse=True)
def _slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such models and their vocabularies take their time to load on a busy machine."""
    monkeypatch.setattr(processes, "START_SECONDS", 1200.0)


@real_models.needs_models
@pytest.mark.slow
@pytest.mark.parametrize("pair", real_models.PAIRS, ids="-".join)
@pytest.mark.parametrize("proposer", ["crosstok-device", "crosstok"])
def test_a_pair(proposer: str, pair: tuple[str, str], engine: Callable[..., Engine]) -> None:
    target, draft = pair
    paired = engine(
        "SPECPLUG",
        model_path=real_models.path(target),
        context_length=256,
        max_running_requests=4,
        max_total_tokens=1024,
        draft_length=4,
        sampling=True,
        settings=real_models.settings(draft, proposer),
        name=f"{proposer} {target}",
    )
    given = real_models.prompts(target)
    answers = paired.call(inside.generate, prompts=given, params={"max_new_tokens": real_models.MAX_TOKENS})
    found = paired.inside(watching.counts)
    print(proposer, pair, found["total"])
    assert not found["faults"]
    assert found["total"]["tau"] > 1.2
    real_models.assert_greedy(target, [answer["token_ids"] for answer in answers])
    sampled = {"temperature": 0.7, "sampling_seed": 1, "max_new_tokens": real_models.MAX_TOKENS}
    paired.call(inside.generate, prompts=given, params=sampled)
    after = paired.inside(watching.counts)
    print(proposer, pair, after["total"])
    assert not after["faults"]
    assert after["total"]["accepted"] > found["total"]["accepted"]
