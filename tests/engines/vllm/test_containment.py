"""A proposer that raises, drafts nonsense or hangs costs its drafts: the text is right and the engine lives on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import watching
from tests.engines.vllm.referee import MAX_TOKENS, RUNNERS, assert_greedy, baseline, fields, kind, prompts, truth

__all__ = ["baseline", "kind", "truth"]

PROMPTS = [list(prompt) for prompt in prompts()]
BROKEN = ["raises", "raises-device", "garbage", "garbage-device", "slow"]
SETTINGS = {
    "proposer": "ngram",
    "extra_proposers": BROKEN,
    "faults": {"host_deadline_ms": 100.0, "max_consecutive": 3, "cooldown_steps": 4},
    "options": {
        "raises": {"call": "propose", "every": 2, "hostile": True},
        "raises-device": {"call": "on_event", "hostile": True},
        "slow": {"seconds": 0.4, "every": 8},
    },
}


@pytest.fixture(scope="session")
def broken(kind: str, engine: Callable[..., Engine]) -> Engine:
    return engine(**RUNNERS[kind], specplug=SETTINGS, name=f"broken {kind}")


@pytest.fixture(scope="session")
def nothing_works(kind: str, engine: Callable[..., Engine]) -> Engine:
    """The server's one proposer raises at every call."""
    settings = {"proposer": "raises-device", "faults": {"cooldown_steps": 2}}
    return engine(**RUNNERS[kind], specplug=settings, name=f"raising {kind}")


def test_every_request_gets_its_text(kind, broken, truth):
    """Rows of all the broken proposers in one batch, twice: what is switched off comes back and fails again."""
    names = [None, *BROKEN]
    requested = [names[index % len(names)] for index in range(12)]
    params = [{"max_tokens": MAX_TOKENS, **({} if name is None else fields(proposer=name))} for name in requested]
    faults = {}
    for _ in range(2):
        found = broken.call(watching.counted, prompts=PROMPTS[:12], params=params)
        assert_greedy(PROMPTS[:12], truth[:12], found["result"])
        assert found["by_source"]["ngram/own text"]["accepted"] > 0, "the sound one is not disturbed"
        for name, kinds in found["faults"].items():
            for fault, count in kinds.items():
                faults[name, fault] = faults.get((name, fault), 0) + count
    assert faults["raises", "raised"] > 0
    assert faults["raises-device", "raised"] > 0
    assert faults["garbage", "malformed"] > 0
    assert faults["slow", "late"] > 0


@pytest.mark.parametrize("kind", ["v1", "v2"], indirect=True)
def test_the_only_proposer_raises(nothing_works, truth):
    found = nothing_works.call(watching.counted, prompts=PROMPTS[:6], params={"max_tokens": MAX_TOKENS})
    assert_greedy(PROMPTS[:6], truth[:6], found["result"])
    assert found["faults"]["raises-device"]["raised"] > 0
    assert found["faults"]["raises-device"]["switched off"] > 0
    assert found["total"]["proposed"] == 0
