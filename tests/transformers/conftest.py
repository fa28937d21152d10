"""Fixtures of the embedded engine's tests.  Models are built once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specplug.plugins.registry import Registry
from specplug.testing import g_test, judge_greedy
from specplug_transformers import Engine, GenerateRequest, RequestOutput, SamplingParams
from tests.proposers import crosstok_tools
from tests.transformers import toys

cached_model = functools.cache(toys.build_model)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    crosstok_tools.read_once(monkeypatch)


@pytest.fixture
def llama() -> Any:
    return cached_model("llama")


@pytest.fixture
def make_engine(llama: Any) -> Iterator[Callable[..., Engine]]:
    """Build engines that are closed when the test ends; settings are keyword arguments."""
    engines: list[Engine] = []

    def make(
        model: Any = None,
        tokenizer: Any = None,
        *,
        max_num_seqs: int = 8,
        prefill_chunk: int = 512,
        max_length: int | None = None,
        registry: Registry | None = None,
        **settings: Any,
    ) -> Engine:
        settings = {"num_speculative_tokens": 4, "proposer": "garbage", "policy": "fixed", **settings}
        settings.setdefault("faults", {"host_deadline_ms": None})  # a busy machine must not change what is tested
        engine = Engine(
            model or llama,
            tokenizer,
            settings=settings,
            max_num_seqs=max_num_seqs,
            max_length=max_length,
            prefill_chunk=prefill_chunk,
            registry=registry or toys.make_registry(),
        )
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def greedy(model: Any, prompt: Sequence[int], max_tokens: int, **options: Any) -> list[int]:
    """Return what `model.generate` answers."""
    ids = torch.tensor([list(prompt)])
    options = {"attention_mask": torch.ones_like(ids), **options}
    out = model.generate(ids, max_new_tokens=max_tokens, do_sample=False, **options)
    return out[0, len(prompt) :].tolist()


def assert_greedy_equal(model: Any, prompts: Sequence[Sequence[int]], expected: Any, actual: Any) -> None:
    """Judge by `judge_greedy`, near ties by a plain forward."""

    def forward(context: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(input_ids=torch.tensor([list(context)])).logits[0, -1].float()

    judge_greedy(forward, prompts, expected, actual).assert_ok()


def assert_plain(
    model: Any, prompts: Sequence[Sequence[int]], outputs: Sequence[RequestOutput], max_tokens: int
) -> None:
    """Judge outputs that ignore the end of sequence by what `model.generate` answers."""
    expected = [greedy(model, prompt, max_tokens, eos_token_id=None) for prompt in prompts]
    assert_greedy_equal(model, prompts, expected, [output.token_ids for output in outputs])


def requests_of(prompts: Sequence[Sequence[int]], **params: Any) -> list[GenerateRequest]:
    return [GenerateRequest(prompt=prompt, params=SamplingParams(**params)) for prompt in prompts]


def kept_after(model: Any, text: Sequence[int], top_k: int, temperature: float = 1.0) -> tuple[list[int], list[float]]:
    """Return the tokens that top-k keeps after a text, most likely first, and their probabilities."""
    with torch.no_grad():
        top = model(input_ids=torch.tensor([list(text)])).logits[0, -1].double().topk(top_k)
    return top.indices.tolist(), (top.values / temperature).softmax(0).tolist()


def exact_distribution(
    model: Any, prompt: Sequence[int], tokens: int, top_k: int, temperature: float = 1.0
) -> dict[tuple[int, ...], float]:
    """Return the probability of each possible output."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(tokens):
        longer = {}
        for output, prob in found.items():
            for token, share in zip(*kept_after(model, [*prompt, *output], top_k, temperature), strict=True):
                longer[*output, token] = prob * share
        found = longer
    assert abs(sum(found.values()) - 1) < 1e-9
    return found


def g_test_of(outputs: Sequence[tuple[int, ...]], distribution: dict[tuple[int, ...], float]) -> float:
    """Return the p-value of the G-test of outputs against their distribution."""
    places = {output: place for place, output in enumerate(distribution)}
    if not places.keys() >= set(outputs):
        return 0.0  # top-k forbids it
    seen = np.bincount([places[output] for output in outputs], minlength=len(places))
    return g_test(seen, np.array(list(distribution.values())))
