"""vLLM runners under test, their reference outputs, and how requests name proposers; see `tests.engines.plain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.plain import MAX_TOKENS, Answers, assert_greedy, forward, ids, model, prompts, tokenizer

__all__ = [
    "MAX_TOKENS",
    "RUNNERS",
    "ZOO",
    "Answers",
    "assert_greedy",
    "baseline",
    "fields",
    "forward",
    "ids",
    "kind",
    "model",
    "prompts",
    "reported",
    "tokenizer",
    "truth",
    "zoo",
]

RUNNERS: dict[str, dict[str, Any]] = {
    "v1": {"runner": "v1"},
    "v2": {"runner": "v2"},
    "v2_async": {"runner": "v2", "asynchronous": True},
}

ZOO = {"proposer": "ngram", "extra_proposers": ["oracle", "bigram", "recorder", "parrot", "spliced"], "policy": "fixed"}
"""Settings of the engines whose requests name their proposers: host and device, with and without knowledge."""


@pytest.fixture(scope="session", params=RUNNERS)
def kind(request: pytest.FixtureRequest) -> str:
    """The runner and its scheduling.  Tests of one kind run together, so that engines start once."""
    return str(request.param)


@pytest.fixture(scope="session")
def baseline(kind: str, engine: Callable[..., Engine]) -> Engine:
    """The same runner without speculation."""
    runner = RUNNERS[kind]["runner"]
    return engine(runner, name=f"baseline {runner}", installed=False)


@pytest.fixture(scope="session")
def zoo(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests name their proposers."""
    return engine(**RUNNERS[kind], specplug=ZOO, name=f"zoo {kind}")


@pytest.fixture
def truth(kind: str, baseline: Engine) -> Answers:
    """Unmodified vLLM's greedy answers to `prompts`, at most `MAX_TOKENS` long; requested once per runner."""
    runner = RUNNERS[kind]["runner"]
    if runner not in _TRUTH:
        given = [list(prompt) for prompt in prompts()]
        _TRUTH[runner] = baseline.call("inside.generate", prompts=given, params={"max_tokens": MAX_TOKENS})
    return _TRUTH[runner]


_TRUTH: dict[str, Answers] = {}


def reported(answer: Sequence[int], **fields: Any) -> dict[str, Any]:
    """Return `extra_args` of a request whose drafts are `answer`, which the oracle takes for the truth."""
    reference = {"token_ids": list(answer)}
    return {"extra_args": {"specplug": {"proposer": "oracle", "references": [reference], **fields}}}


def fields(**given: Any) -> dict[str, Any]:
    """Return `extra_args` with specplug's fields of one request."""
    return {"extra_args": {"specplug": given}}
