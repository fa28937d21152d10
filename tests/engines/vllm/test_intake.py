"""specplug's request fields are checked before the engine receives them, and V2 serves min_p and logit_bias.

What comes over HTTP is tested in `test_server`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.engines.engines import Engine, Raised
from tests.engines.vllm import inside
from tests.engines.vllm.referee import ZOO, assert_greedy, ids, prompts

TEXT = "def area(r):\n    return 3.14159 * r * r\n"
PACKED = base64.b64encode(np.array([5, 6, 7], dtype="<i4").tobytes()).decode()
MAX_TOKENS = 24


# Inside the engine's process.


def arrival(llm: Any, extra_args: dict[str, Any], **sampling: Any) -> dict[str, Any]:
    """Admit a request, and return what the scheduler's copies of it carry, one per child."""
    from specplug.requests import wire

    before = repr(extra_args)
    params = inside.sampling({**sampling, "extra_args": extra_args})
    llm.llm_engine.add_request("arrival", {"prompt_token_ids": [5, 6, 7]}, params)
    try:
        found = []
        for request in list(inside.scheduler(llm).requests.values()):
            carried = request.sampling_params.extra_args
            options, references, tenant = wire.decode(carried)
            found.append(
                {
                    "options": {
                        key: value
                        for key in ("enabled", "num_speculative_tokens", "proposer", "store", "corpora", "documents")
                        if (value := getattr(options, key)) != getattr(wire.DEFAULTS, key)
                    },
                    "references": {reference.name: reference.token_ids.tolist() for reference in references},
                    "tenant": tenant,
                    "keys": sorted(carried),
                }
            )
    finally:
        llm.llm_engine.abort_request(["arrival"])
        while llm.llm_engine.has_unfinished_requests() or inside.scheduler(llm).requests:
            llm.llm_engine.step()
    return {"found": found, "untouched": params.extra_args is extra_args and repr(extra_args) == before}


def refusal(llm: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Return how a request is refused, and whether the engine received it."""
    from vllm.exceptions import VLLMClientError

    try:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], inside.sampling(params), use_tqdm=False)
    except Exception as error:
        kinds = [kind.__name__ for kind in (ValueError, VLLMClientError) if isinstance(error, kind)]
        return {"text": str(error), "kinds": kinds, "seen": len(inside.scheduler(llm).requests)}
    return {"text": None}


def drafts_without_bias(llm: Any, on: bool) -> None:
    """Plant the mistake that the tests are for: logit biases at each row's first position only."""
    state = type(inside.runner(llm).sampler.logits_processors[0])
    assert state.__name__ == "LogitBiasState"
    if not on:
        state.apply = state._baseline_apply
        return
    state._baseline_apply = state.apply

    def apply(self: Any, logits: Any, ctx: Any) -> Any:
        raw = logits.clone()
        biased = state._baseline_apply(self, logits, ctx)
        return biased.where((ctx.expanded_local_pos == 0)[:, None], raw)

    state.apply = apply


# On V1.


@pytest.mark.parametrize(
    ("extra_args", "options", "references", "tenant"),
    [
        ({"specplug": {"enabled": False, "store": False, "tenant": "a"}}, {"enabled": False, "store": False}, {}, "a"),
        (
            {"specplug": {"references": [{"token_ids": [5, 6], "name": "x"}]}, "specplug_prediction": "area"},
            {},
            {"prediction": "area", "x": [5, 6]},
            None,
        ),
        ({"specplug_references": json.dumps({"token_ids": PACKED})}, {}, {"reference 1": [5, 6, 7]}, None),
        ({"specplug_num_speculative_tokens": 200}, {"num_speculative_tokens": 8}, {}, None),
        (
            {
                "specplug_documents": json.dumps([{"name": "a.txt", "corpus": "notes"}, "b.txt"]),
                "specplug_corpora": "notes",
            },
            {"documents": [["a.txt", "notes"], ["b.txt", None]], "corpora": ["notes"]},
            {},
            None,
        ),
    ],
)
def test_fields_arrive_parsed_and_the_callers_parameters_stay_as_they_are(
    engine, extra_args, options, references, tenant
):
    zoo = engine("v1", ZOO, name="zoo v1")
    answer = zoo.call(arrival, extra_args={**extra_args, "other": 1})
    expected = {name: ids(text) if isinstance(text, str) else text for name, text in references.items()}
    (found,) = answer["found"]
    assert found == {"options": options, "references": expected, "tenant": tenant, "keys": ["other", "specplug"]}
    assert answer["untouched"]


def test_every_child_of_a_request_carries_its_fields(engine):
    zoo = engine("v1", ZOO, name="zoo v1")
    answer = zoo.call(arrival, extra_args={"specplug_references": [5, 6, 7]}, n=3, temperature=1.0)
    assert [found["references"] for found in answer["found"]] == [{"reference 1": [5, 6, 7]}] * 3


@pytest.mark.parametrize(
    ("extra_args", "fragments"),
    [
        ({"specplug_refrences": TEXT}, ["'specplug_refrences'", "Did you mean 'specplug_references'?"]),
        ({"specplug_verifier": "reference"}, ["does not verify with it"]),
        ({"specplug_references": [5, 2048]}, ["found 2048 as entry 1", "expected 0 to 2047"]),
        ({"specplug_references": "x " * 10_000_000}, ["too large", "limits.max_reference_tokens"]),
    ],
)
def test_mistakes_are_value_errors_and_never_reach_the_engine(engine, extra_args, fragments):
    zoo = engine("v1", ZOO, name="zoo v1")
    answer = zoo.call(refusal, params={"extra_args": extra_args})
    assert answer["text"] is not None
    assert [fragment for fragment in fragments if fragment not in answer["text"]] == []
    assert answer["kinds"] == ["ValueError", "VLLMClientError"]  # vLLM's server answers the latter with a 400
    assert answer["seen"] == 0


def test_one_bad_request_among_others_spoils_nothing(engine):
    zoo = engine("v1", ZOO, name="zoo v1")
    bad = {"extra_args": {"specplug_tenants": "a"}}
    with pytest.raises(Raised, match="specplug_tenants"):
        zoo.call("inside.generate", prompts=["a", "b", "c"], params=[{}, bad, {}])
    (answer,) = zoo.call("inside.generate", prompts=["a"], params={"max_tokens": 4})
    assert len(answer["token_ids"]) == 4


@pytest.mark.parametrize("field", [{"min_p": 0.1, "temperature": 1.0}, {"logit_bias": {"3": 1.0}}])
def test_v1_refuses_what_it_would_not_apply_to_drafts(engine, field):
    answer = engine("v1", ZOO, name="zoo v1").call(refusal, params=field)
    assert "not yet supported with speculative decoding" in answer["text"]
    assert answer["seen"] == 0


# On V2.

GIVEN = [list(prompt) for prompt in prompts()[:4]]


def zoo_v2(engine: Callable[..., Engine]) -> Engine:
    return engine("v2", ZOO, name="zoo v2")


def drafted(answers: Sequence[dict[str, Any]], **params: Any) -> list[dict[str, Any]]:
    """Return parameters of requests whose drafts are these answers: accepted throughout, where nothing else is said."""
    return [
        {
            **params,
            "max_tokens": MAX_TOKENS,
            "extra_args": {"specplug": {"proposer": "oracle", "references": [{"token_ids": answer["token_ids"]}]}},
        }
        for answer in answers
    ]


def biases(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Forbid the commonest tokens of these answers, and favour one that none of them has."""
    stated = [token for answer in answers for token in answer["token_ids"]]
    common = sorted(set(stated), key=stated.count, reverse=True)[:12]
    rare = next(token for token in range(300, 2048) if token not in stated)
    return {**{str(token): -100.0 for token in common}, str(rare): 3.0}


@pytest.fixture(scope="module")
def plain(baseline_v2: Engine) -> list[dict[str, Any]]:
    return baseline_v2.call("inside.generate", prompts=GIVEN, params={"max_tokens": MAX_TOKENS})


def test_logit_bias_is_exact_at_every_draft_position(engine, baseline_v2, plain):
    """Drafts that are all accepted and drafts that the bias forbids both give unmodified vLLM's answers."""
    bias = biases(plain)
    params = {"max_tokens": MAX_TOKENS, "logit_bias": bias}
    biased = baseline_v2.call("inside.generate", prompts=GIVEN, params=params)
    assert all(a["token_ids"] != b["token_ids"] for a, b in zip(biased, plain, strict=True))
    zoo = zoo_v2(engine)
    before = zoo.call("inside.metrics")
    assert_greedy_biased(zoo, biased, biased, bias)
    after = zoo.call("inside.metrics")
    accepted = "vllm:spec_decode_num_accepted_tokens"
    assert after[accepted] - before.get(accepted, 0) > MAX_TOKENS  # of 4 x 24 tokens: positions after the first decide
    assert_greedy_biased(zoo, biased, plain, bias)


def assert_greedy_biased(zoo: Engine, expected: list[dict[str, Any]], drafts: list[dict[str, Any]], bias: Any) -> None:
    found = zoo.call("inside.generate", prompts=GIVEN, params=drafted(drafts, logit_bias=bias))
    assert [answer["token_ids"] for answer in found] == [answer["token_ids"] for answer in expected]


def test_a_bias_at_the_first_position_only_would_be_noticed(engine, baseline_v2, plain):
    bias = biases(plain)
    biased = baseline_v2.call("inside.generate", prompts=GIVEN, params={"max_tokens": MAX_TOKENS, "logit_bias": bias})
    zoo = zoo_v2(engine)
    zoo.call(drafts_without_bias, on=True)
    try:
        with pytest.raises(AssertionError):
            assert_greedy_biased(zoo, biased, biased, bias)
    finally:
        zoo.call(drafts_without_bias, on=False)
    assert_greedy_biased(zoo, biased, biased, bias)


def test_min_p_is_applied_at_every_draft_position(engine, plain):
    """With min_p 1 only the likeliest token is left, at any temperature; without it these texts would be noise."""
    zoo = zoo_v2(engine)
    sampled = {"temperature": 1.5, "min_p": 1.0}
    found = zoo.call("inside.generate", prompts=GIVEN, params=drafted(plain, **sampled))
    assert_greedy(GIVEN, plain, found)
    noise = zoo.call("inside.generate", prompts=GIVEN, params=drafted(plain, temperature=1.5))
    assert any(a["token_ids"] != b["token_ids"] for a, b in zip(noise, plain, strict=True))


def test_too_many_biases_are_refused_before_they_end_the_engine(engine):
    answer = zoo_v2(engine).call(refusal, params={"logit_bias": {str(token): 1.0 for token in range(1025)}})
    assert "too many entries in logit_bias" in answer["text"]
    assert answer["kinds"] == ["ValueError", "VLLMClientError"]
    assert answer["seen"] == 0
