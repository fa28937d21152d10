"""Proposers receive how much of a text the client saw, however a request ends, and which requests may share state."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.requests.clients import isolation_key
from specplug.types.request import Lifecycle, RequestEvent
from specplug_transformers import GenerateRequest, RequestOutput, SamplingParams
from tests.transformers.test_stopping import PROMPT, TEXT, _only, byte_tokenizer, spell
from tests.transformers.toys import EOS, Oracle, Recorder

FINISHED, ABORTED = Lifecycle.FINISHED, Lifecycle.ABORTED
STATED = [*spell(TEXT), EOS, *spell("never ")]


@pytest.fixture
def say(make_engine):
    """Let the model answer `STATED`, all of it drafted; return the last output, and the event of the request's end."""

    def run(*, leave_after: int | None = None, **params: Any) -> tuple[RequestOutput, RequestEvent]:
        engine = make_engine(
            tokenizer=byte_tokenizer(), proposer="oracle", extra_proposers=["recorder"], num_speculative_tokens=8
        )
        Oracle.answers = {"mine": STATED}
        given = {"max_tokens": len(STATED), "allowed_tokens": _only(STATED), "ignore_eos": True, **params}
        engine.add(GenerateRequest(prompt=PROMPT, params=SamplingParams(**given), request_id="mine"))
        output: RequestOutput | None = None
        for output in engine.run():
            if leave_after is not None and len(output.token_ids) >= leave_after:
                output = engine.abort("mine")
        assert output is not None
        *others, last = Recorder.newest.events
        assert [event.visible for event in others] == [None] * len(others), "nothing has ended yet"
        return output, last

    return run


@pytest.mark.parametrize("stop", ["naïve", "京!", "½", "G", " end. ", "n", "\U0001f642 e"])
def test_a_stop_string_was_not_seen(say, stop):
    """Each token is a byte: the client saw the bytes before the string, without half characters."""
    output, last = say(stop=["not said", stop])
    assert output.text == TEXT[: TEXT.index(stop)]
    assert (last.kind, last.visible) == (FINISHED, len(PROMPT) + len(spell(output.text)))
    assert len(output.token_ids) > len(spell(output.text)), "the ids go on"


@pytest.mark.parametrize(
    "params",
    [
        {"ignore_eos": False},
        {"max_tokens": 1},
        {"max_tokens": 13},
        {"stop_token_ids": [spell("!")[0]]},
        {"stop": ["not said"], "max_tokens": 20},
        {"stop": ["½"], "max_tokens": len(spell(TEXT[: TEXT.index("½")]))},
    ],
)
def test_what_else_ends_a_request_was_seen(say, params):
    output, last = say(**params)
    assert (last.kind, last.visible) == (FINISHED, len(PROMPT) + len(output.token_ids))
    text = Recorder.newest.texts["mine"]
    assert text == [*PROMPT, *output.token_ids][: len(text)]


def test_a_client_that_leaves(say):
    output, last = say(leave_after=5)
    assert 5 <= len(output.token_ids) < len(spell(TEXT))
    assert (last.kind, last.visible) == (ABORTED, len(PROMPT) + len(output.token_ids))


def test_who_may_share(make_engine):
    engine = make_engine(proposer="recorder")
    keys = []
    for tenant in (None, "a", "b"):
        fields = None if tenant is None else {"tenant": tenant}
        engine.generate([GenerateRequest(prompt=PROMPT, params=SamplingParams(max_tokens=1), specplug=fields)])
        keys.append(Recorder.newest.events[-1].request.isolation_key)
    assert keys == [isolation_key(tenant) for tenant in (None, "a", "b")]
    assert len(set(keys)) == len(keys)
