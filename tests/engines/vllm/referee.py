"""What engines are held against: the tiny model run plainly, the prompts they get, and the runners that are tested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from specplug.demo.tasks import KINDS, make_tasks
from specplug.testing.equality import judge_greedy
from tests.engines.vllm.engines import Engine
from tests.engines.vllm.launch import TINY

Answers = list[dict[str, Any]]
"""As `inside.generate` returns them."""

MAX_TOKENS = 40

RUNNERS: dict[str, dict[str, Any]] = {
    "v1": {"runner": "v1"},
    "v2": {"runner": "v2"},
    "v2_async": {"runner": "v2", "asynchronous": True},
}

ZOO = {"proposer": "ngram", "extra_proposers": ["oracle", "bigram", "recorder"], "policy": "fixed"}
"""Settings of the engines whose requests name their proposers: host and device, with and without knowledge."""


@pytest.fixture(scope="session", params=RUNNERS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which runner serves, and how.  Tests of one kind run together, so that engines start once."""
    return str(request.param)


@pytest.fixture(scope="session")
def stock(kind: str, engine: Callable[..., Engine]) -> Engine:
    """The same runner without speculation."""
    runner = RUNNERS[kind]["runner"]
    return engine(runner, name=f"stock {runner}", installed=False)


@pytest.fixture(scope="session")
def zoo(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose requests name their proposers."""
    return engine(**RUNNERS[kind], specplug=ZOO, name=f"zoo {kind}")


@pytest.fixture
def truth(kind: str, stock: Engine) -> Answers:
    """Stock's greedy answers to `prompts`, `MAX_TOKENS` long at most; asked for once per runner."""
    runner = RUNNERS[kind]["runner"]
    if runner not in _TRUTH:
        given = [list(prompt) for prompt in prompts()]
        _TRUTH[runner] = stock.call("inside.generate", prompts=given, params={"max_tokens": MAX_TOKENS})
    return _TRUTH[runner]


_TRUTH: dict[str, Answers] = {}


@functools.cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(TINY)


@functools.cache
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()


def forward(context: Sequence[int]) -> torch.Tensor:
    """Return the logits [V] behind a context, of a plain forward in float32."""
    with torch.inference_mode():
        return model()(input_ids=torch.tensor([list(context)])).logits[0, -1].float()


def ids(text: str) -> list[int]:
    """Return a text's token ids."""
    return list(tokenizer()(text).input_ids)


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """Return 24 prompts, the kinds of task in turn, short and long ones mixed."""
    tasks = [make_tasks(kind, "held-out", 6, seed=1) for kind in KINDS]
    return tuple(tuple(ids(task.prompt)) for same in zip(*tasks, strict=True) for task in same)


def told(answer: Sequence[int], **fields: Any) -> dict[str, Any]:
    """Return `extra_args` of a request whose drafts are `answer`, which the oracle takes for the truth."""
    reference = {"token_ids": list(answer)}
    return {"extra_args": {"specplug": {"proposer": "oracle", "references": [reference], **fields}}}


def fields(**given: Any) -> dict[str, Any]:
    """Return `extra_args` with specplug's fields of one request."""
    return {"extra_args": {"specplug": given}}


def assert_greedy(
    given: Sequence[Sequence[int]], expected: Sequence[dict[str, Any]], actual: Sequence[dict[str, Any]]
) -> None:
    """Judge answers as `inside.generate` returns them; near ties are weighed by the plain model."""
    texts = [[answer["token_ids"] for answer in answers] for answers in (expected, actual)]
    judge_greedy(forward, given, *texts).assert_ok()
    reasons = [
        [(answer["finish_reason"], answer["stop_reason"]) for answer in answers] for answers in (expected, actual)
    ]
    assert texts[0] != texts[1] or reasons[0] == reasons[1]
