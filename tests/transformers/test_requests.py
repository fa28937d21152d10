"""Valid fields of a request, and the refusals of invalid ones, after which the engine keeps serving."""

from __future__ import annotations

import math

import pytest

from specplug.errors import RequestError
from specplug_transformers import GenerateRequest, SamplingParams
from tests.transformers.conftest import greedy
from tests.transformers.test_stopping import byte_tokenizer, spell
from tests.transformers.toys import CONTEXT, VOCAB, Oracle

PROMPT = [5, 9, 33]


def request(prompt=PROMPT, request_id="mine", **fields):
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    return GenerateRequest(prompt=prompt, params=params, specplug=fields or None, request_id=request_id)


@pytest.mark.parametrize(
    ("fields", "draft_length"),
    [({"enabled": False}, 0)]
    + [({"num_speculative_tokens": length}, min(length, 4)) for length in (0, 2, 100)]
    + [({}, 4)],
    ids=str,
)
def test_a_request_chooses_its_proposer_and_draft_length(make_engine, llama, fields, draft_length):
    """The one beside it keeps the server's."""
    answer = greedy(llama, PROMPT, 24, eos_token_id=None)
    Oracle.answers = {"mine": answer, "other": answer}
    engine = make_engine(proposer="garbage", extra_proposers=["oracle"], num_speculative_tokens=4)
    mine, other = engine.generate([request(proposer="oracle", **fields), request(request_id="other")])
    assert list(mine.token_ids) == list(other.token_ids) == answer
    assert (mine.steps, mine.verified > 0) == (math.ceil(24 / (draft_length + 1)), draft_length > 0)
    assert other.steps > math.ceil(24 / 5)
    counts = engine.metrics.snapshot().by_source
    assert counts["garbage"].verified == other.verified > 0
    assert (counts["oracle"].accepted > 0) == (draft_length > 0)


@pytest.mark.parametrize("kind", ["token_ids", "text", "prediction"])
def test_references_are_drafted_from(make_engine, llama, kind):
    """A reference that holds the answer is worth as much as an oracle."""
    answer = greedy(llama, PROMPT, 24, eos_token_id=None)
    text = byte_tokenizer().decode(answer)
    answer = spell(text)  # ids that survive text and back
    fields = {
        "token_ids": {"references": [{"token_ids": PROMPT + answer}]},
        "text": {"references": [byte_tokenizer().decode(PROMPT) + text]},
        "prediction": {"prediction": {"type": "content", "content": byte_tokenizer().decode(PROMPT) + text}},
    }[kind]
    engine = make_engine(tokenizer=byte_tokenizer(), proposer="ngram")
    [without] = engine.generate([request()])
    [with_it] = engine.generate([request(**fields)])
    assert with_it.token_ids == without.token_ids
    assert with_it.accepted > without.accepted
    assert with_it.steps < without.steps
    assert engine.metrics.snapshot().by_source["ngram/reference"].accepted > 0


MISTAKES = {
    "unknown field": ({"specplug": {"num_spec_tokens": 3}}, "num_speculative_tokens"),
    "proposer that is not loaded": ({"specplug": {"proposer": "raising"}}, "extra_proposers"),
    "large reference": ({"specplug": {"references": [{"token_ids": [5] * 51}]}}, "at most 50 tokens"),
    "foreign id in a reference": ({"specplug": {"references": [{"token_ids": [VOCAB]}]}}, f"0 to {VOCAB - 1}"),
    "text reference without a tokenizer": ({"specplug": {"references": ["text"]}}, "tokenizer"),
    "verifier": ({"specplug": {"verifier": "typical"}}, "does not verify with it"),
    "empty prompt": ({"prompt": []}, "at least one token"),
    "long prompt": ({"prompt": [5] * CONTEXT}, f"fewer than {CONTEXT}"),
    "foreign id in the prompt": ({"prompt": [5, VOCAB]}, f"0 to {VOCAB - 1}"),
    "negative id in the prompt": ({"prompt": [-1]}, f"0 to {VOCAB - 1}"),
    "fractions in the prompt": ({"prompt": [5.5]}, "text or token ids"),
    "no prompt": ({"prompt": None}, "text or token ids"),
    "text without a tokenizer": ({"prompt": "text"}, "tokenizer"),
    "stop string without a tokenizer": ({"params": {"stop": ["x"]}}, "tokenizer"),
    "bias of a foreign id": ({"params": {"logit_bias": {VOCAB: 1.0}}}, "logit_bias"),
    "foreign bad word": ({"params": {"bad_words": [[5, VOCAB]]}}, "bad_words"),
    "foreign stop id": ({"params": {"stop_token_ids": [-3]}}, "stop_token_ids"),
    "id that runs already": ({"request_id": "first"}, "'first'"),
}


def test_mistakes_are_refused_and_the_engine_serves_on(make_engine, llama):
    engine = make_engine(extra_proposers=["oracle"], limits={"max_reference_tokens": 50})
    engine.add(request(request_id="first"))
    engine.step()
    for mistake, (requested, words) in MISTAKES.items():
        params = SamplingParams(**requested.get("params", {}))
        with pytest.raises(RequestError) as caught:
            engine.add(GenerateRequest(**{"prompt": PROMPT, **requested, "params": params}))
        assert words in str(caught.value), mistake
    outputs = list(engine.run())
    assert {output.request_id for output in outputs} == {"first"}
    assert list(outputs[-1].token_ids) == greedy(llama, PROMPT, 24, eos_token_id=None)
    assert engine.add(request(request_id="first")) == "first", "the id is free again"


def test_an_id_that_the_engine_chooses_is_new(make_engine):
    engine = make_engine()
    assert [engine.add(request(request_id=name)) for name in ("request-0", None, "request-2", None)] == [
        f"request-{number}" for number in range(4)
    ]


BAD_PARAMS = {
    "max_tokens": [0, -1, 1.5, "3", None, True],
    "temperature": [-0.1, math.nan, math.inf, "hot", None],
    "top_k": [-1, 0.5],
    "top_p": [0, 1.1, math.nan],
    "min_p": [-0.1, 1.1],
    "seed": [0.5, "x"],
    "repetition_penalty": [0, -1, math.inf],
    "presence_penalty": [math.nan, math.inf],
    "frequency_penalty": ["2"],
    "logit_bias": [[5], {5: math.nan}, {5: math.inf}, {5: "x"}],
    "bad_words": [[[]], [5], 5],
    "min_tokens": [-1, 129],
    "allowed_tokens": [[5]],
    "stop": ["text", [""], [5], 5],
    "stop_token_ids": [5, ["x"]],
}


@pytest.mark.parametrize("name", BAD_PARAMS)
def test_bad_sampling_parameters(name):
    for value in BAD_PARAMS[name]:
        with pytest.raises(RequestError, match=f"bad sampling parameter '{name}'; found .*; expected"):
            SamplingParams(**{name: value})
