"""Lossy verification on the embedded engine: only for requests that name it, as lenient as their threshold, counted."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.errors import RequestError
from specplug_transformers import GenerateRequest, SamplingParams
from tests.transformers.conftest import cached_model, greedy
from tests.transformers.toys import prompts

PROMPT = prompts(1)[0]
NAMED = {"prose": 1e-6, "code": 1.0}


@pytest.fixture(scope="module")
def answer():
    """Return the model's own answer, which every fourth token of the drafts departs from."""
    return greedy(cached_model("llama"), PROMPT, 24, eos_token_id=None)


@pytest.fixture
def engine(make_engine):
    return make_engine(proposer="ngram", verifier="threshold", acceptance_thresholds=NAMED)


def request(draft: list[int], **fields: Any) -> GenerateRequest:
    """Return a request that drafts from a text."""
    return GenerateRequest(
        prompt=PROMPT,
        params=SamplingParams(max_tokens=24, ignore_eos=True),
        specplug={"references": [{"token_ids": [*PROMPT, *draft]}], "store": False, **fields},
    )


def ask(engine: Any, draft: list[int], **fields: Any) -> Any:
    return engine.generate([request(draft, **fields)])[0]


def spoiled(answer: list[int]) -> list[int]:
    return [answer[place - 1] if place % 4 == 3 else token for place, token in enumerate(answer)]


def test_a_request_may_be_as_strict_as_lossless(engine, answer):
    for threshold in (1, 1.0, "code"):
        found = ask(engine, spoiled(answer), verifier="threshold", acceptance_threshold=threshold)
        assert list(found.token_ids) == answer
    lossy = engine.metrics.snapshot().lossy
    assert (lossy.accepted > 0, lossy.departed) == (True, 0.0)


def test_a_lenient_request_keeps_more_of_its_draft_and_departs(engine, answer):
    strict = ask(engine, spoiled(answer))
    assert engine.metrics.snapshot().lossy.accepted == 0, "a request that does not name it is served losslessly"
    lenient = ask(engine, spoiled(answer), verifier="threshold", acceptance_threshold="prose")
    assert list(lenient.token_ids) != answer
    assert lenient.steps < strict.steps
    counted = engine.metrics.snapshot().lossy
    assert counted.accepted == lenient.accepted
    assert 0 < counted.departed <= counted.accepted
    assert counted.departed == int(counted.departed), "greedy tokens depart or do not"


def test_requests_in_one_batch_have_their_own_thresholds(engine, answer):
    lenient = {"verifier": "threshold", "acceptance_threshold": "prose"}
    strict = {"verifier": "threshold", "acceptance_threshold": "code"}
    outputs = engine.generate([request(spoiled(answer), **fields) for fields in ({}, lenient, strict)])
    assert [list(output.token_ids) == answer for output in outputs] == [True, False, True]


def test_a_lossless_server_takes_no_threshold(make_engine):
    with pytest.raises(RequestError, match="takes no threshold"):
        ask(make_engine(proposer="ngram"), [1], verifier="reference", acceptance_threshold=0.5)
