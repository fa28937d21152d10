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


STRICT = [{}, *({"verifier": "threshold", "acceptance_threshold": threshold} for threshold in (1, 1.0, "code"))]
LENIENT = {"verifier": "threshold", "acceptance_threshold": "prose"}


def test_requests_in_one_batch_are_as_strict_as_they_say(engine, answer):
    """One that names no verifier is served losslessly, and so is one of threshold 1."""
    outputs = engine.generate([request(spoiled(answer), **fields) for fields in (*STRICT[:2], LENIENT, *STRICT[2:])])
    lenient = outputs.pop(2)
    assert [list(output.token_ids) for output in outputs] == [answer] * len(STRICT)
    assert list(lenient.token_ids) != answer
    assert lenient.steps < min(output.steps for output in outputs)
    counted = engine.metrics.snapshot().lossy.accepted
    assert counted == sum(output.accepted for output in (lenient, *outputs[1:])), "of those that name the verifier"


@pytest.mark.parametrize(("fields", "departs"), [(STRICT[0], None), (STRICT[1], False), (LENIENT, True)])
def test_departures_are_counted_of_requests_that_name_the_verifier(engine, answer, fields, departs):
    found = ask(engine, spoiled(answer), **fields)
    counted = engine.metrics.snapshot().lossy
    assert counted.accepted == (0 if departs is None else found.accepted)
    assert (counted.departed > 0) == bool(departs)
    assert counted.departed == int(counted.departed) <= counted.accepted, "greedy tokens depart or do not"


def test_a_lossless_server_takes_no_threshold(make_engine):
    with pytest.raises(RequestError, match="takes no threshold"):
        ask(make_engine(proposer="ngram"), [1], verifier="reference", acceptance_threshold=0.5)
