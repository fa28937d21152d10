"""Requests that SGLang's verification serves inexactly get no drafts, and so the output of plain decoding.

In the same batches other requests are drafted for.  Each pair of engines gets its requests in one prefill: overlapped,
SGLang itself counts penalties a token late, and otherwise by what was prefilled when.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engines import toy
from tests.engines.plain import ids, tokenizer
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_sampling import saved, small
from tests.engines.suites.features import EDIT, LOOP, NEWLINE, NGRAM

__all__ = ["saved", "small"]

VARIED = {
    "proposer": "ngram",
    "policy": "ladder",
    "options": {"ladder": {"draft_lengths": [0, 0, 3, 0, 8]}, "ngram": {"min_n": 1}},
    "faults": {"host_deadline_ms": None},
}
"""Settings with another draft length at each step, and steps without drafts."""
SERVED: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "enable_return_hidden_states": True,
    "chunked_prefill_size": 64,
    "max_running_requests": 24,
}
"""Engines of these tests, and of those of features."""

DIGITS = [ids("x = 1\n")[2], ids("x = 2\n")[2]]


Requested = tuple[list[int], dict[str, Any], dict[str, Any]]
"""Prompt, sampling parameters and further arguments of a request."""

LOOPING = {"ignore_eos": True}
PLAIN: dict[str, Requested] = {
    "frequency": (LOOP, {**LOOPING, "frequency_penalty": 0.8}, {}),
    "presence": (LOOP, {**LOOPING, "presence_penalty": 1.9}, {"return_logprob": True}),
    "repetition": (LOOP, {**LOOPING, "repetition_penalty": 1.9}, {"return_logprob": True}),
    # Not all penalties in one: without overlap, SGLang applies them in an order that differs from process to process.
    "frequency and presence": (
        EDIT,
        {**LOOPING, "frequency_penalty": 1.5, "presence_penalty": -0.4},
        {"return_logprob": True, "top_logprobs_num": 3},
    ),
    "min new tokens": (LOOP, {"stop_token_ids": [NEWLINE], "min_new_tokens": 17}, {}),
    "processor": (
        LOOP,
        {**LOOPING, "custom_params": {"token_ids": DIGITS}},
        {"custom_logit_processor": "ban", "return_logprob": True, "top_logprobs_num": 2},
    ),
    "biased and penalised": (
        LOOP,
        {**LOOPING, "logit_bias": {str(NEWLINE): -20.0}, "presence_penalty": 0.5},
        {"return_logprob": True, "token_ids_logprob": [NEWLINE, DIGITS[0]]},
    ),
}
"""Requests that get no drafts."""

DRAFTED: dict[str, Requested] = {
    "ordinary": (LOOP, LOOPING, {"return_logprob": True}),
    "ordinary edit": (EDIT, {}, {"return_logprob": True}),
    "biased": (LOOP, {**LOOPING, "logit_bias": {str(NEWLINE): -20.0}}, {"return_logprob": True}),
    "greedy min_p": (LOOP, {**LOOPING, "min_p": 0.5}, {}),
    "logprobs of tokens": (LOOP, {}, {"return_logprob": True, "token_ids_logprob": [NEWLINE, *DIGITS]}),
    "hidden states": (LOOP, LOOPING, {"return_hidden_states": True}),
}
"""Requests of the same batch that do."""

GRAMMARS: dict[str, Requested] = {
    "regex": (LOOP, {"regex": "(x = [0-9]\n){4}y = 77"}, {}),
    "regex and penalty": (LOOP, {"regex": "([xy] = [0-9]\n){6}", "frequency_penalty": 1.5}, {}),
    "regex and processor": (
        LOOP,
        {"regex": "([xy] = [0-9]\n){6}", "custom_params": {"token_ids": DIGITS}},
        {"custom_logit_processor": "ban"},
    ),
    "ordinary": (LOOP, LOOPING, {}),
}
"""A batch in which grammars forbid, too."""

Counts = dict[str, tuple[int, int]]


OPTIONS: dict[str, Any] = {
    "custom_logit_processor": None,
    "return_logprob": False,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "token_ids_logprob": [],
    "return_hidden_states": False,
}
"""What requests may ask for beside sampling parameters, and what those get that do not."""


def ask(engine: Engine, requested: dict[str, Requested]) -> dict[str, dict[str, Any]]:
    """Return the answers by name; all requests start in one prefill, or in the chunks of one."""
    engine.inside(watching.hold_back, count=len(requested))
    assert engine.call(inside.flush)
    prompts, params, options = zip(*requested.values(), strict=True)
    each = {
        option: [own.get(option, default) for own in options]
        for option, default in OPTIONS.items()
        if any(option in own for own in options)
    }
    answers = engine.call(generate, prompts=prompts, params=params, rid=list(requested), **each)
    return dict(zip(requested, answers, strict=True))


def generate(engine: Any, custom_logit_processor: list[str | None] | None = None, **given: Any) -> list[dict[str, Any]]:
    """Generate as `inside.generate` does; any custom logit processor forbids tokens."""
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    if custom_logit_processor is not None:
        ban = DisallowedTokensLogitsProcessor.to_str()
        given["custom_logit_processor"] = [name and ban for name in custom_logit_processor]
    return inside.generate(engine, **given)


DRAWN: dict[str, tuple[int, int]] = {}


def count_drafts(scheduler: Any) -> None:
    """Count, by request id, its decoding steps and the tokens that were verified, until `counted`."""
    drafting = scheduler.draft_worker.drafting

    def launched(reqs: Any, draft: Any) -> None:
        for req, length in zip(reqs, [0] * len(reqs) if draft is None else draft.lengths.tolist(), strict=True):
            steps, tokens = DRAWN.get(req.rid, (0, 0))
            DRAWN[req.rid] = (steps + 1, tokens + length)
        original(reqs, draft)

    DRAWN.clear()
    original = trees.put(drafting, "launched", launched)


def counted(scheduler: Any) -> Counts:
    """Return by request id how many steps it saw and how many draft tokens were verified for it."""
    return dict(DRAWN)


@pytest.fixture(scope="session", params=[False, True], ids=["sync", "overlap"])
def pair(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """SGLang without speculation, and specplug; a step at a time and overlapped."""
    return engine(overlap=request.param, **SERVED, name="plain"), varied(engine, overlap=request.param)


def varied(engine: Callable[..., Engine], **arguments: Any) -> Engine:
    environment = {"SPECPLUG_CONFIG": json.dumps(VARIED)}
    return engine("SPECPLUG", environment=environment, **SERVED, name="exact", **arguments)


Answered = tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], Counts]


@pytest.fixture(scope="session")
def answered(pair: tuple[Engine, Engine]) -> Answered:
    """The answers of both, and what was drafted."""
    return both(pair, {**PLAIN, **DRAFTED})


@pytest.fixture(scope="session")
def under_grammars(pair: tuple[Engine, Engine]) -> Answered:
    return both(pair, GRAMMARS)


def both(pair: tuple[Engine, Engine], requested: dict[str, Requested]) -> Answered:
    expected = ask(pair[0], requested)
    with pair[1].planted(count_drafts):
        found = ask(pair[1], requested)
    return expected, found, pair[1].inside(counted)


def assert_same(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Tokens, text, reasons to stop, and any requested log probabilities and hidden states are equal."""
    for key in ("token_ids", "text", "finish_reason", "stop_reason"):
        assert found[key] == expected[key], key
    for key in [f"{of}_{kind}_logprobs" for of in ("input", "output") for kind in ("token", "top", "token_ids")]:
        assert flat(found["meta"].get(key)) == pytest.approx(flat(expected["meta"].get(key)), abs=1e-4), key


def flat(logprobs: Any) -> list[float]:
    """Return all numbers of nested lists; of None nothing."""
    if isinstance(logprobs, list):
        return [number for part in logprobs for number in flat(part)]
    return [] if logprobs is None or isinstance(logprobs, str) else [float(logprobs)]


@pytest.mark.parametrize("name", [*PLAIN, *DRAFTED])
def test_as_without_speculation(name, answered):
    expected, found, _ = answered
    assert_same(expected[name], found[name])


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_as_without_speculation(name, under_grammars):
    expected, found, _ = under_grammars
    assert_same(expected[name], found[name])


@pytest.mark.parametrize("name", [*PLAIN, "regex and penalty", "regex and processor"])
def test_these_get_no_drafts_among_those_that_do(name, answered, under_grammars):
    _, found, counts = answered if name in PLAIN else under_grammars
    steps, tokens = counts[name]
    assert tokens == 0
    assert steps >= len(found[name]["token_ids"]) - 1


def test_others_in_the_batch_do(answered, under_grammars):
    for found, counts, names in ((*answered[1:], DRAFTED), (*under_grammars[1:], ["regex", "ordinary"])):
        for name in names:
            assert counts[name][1] > 0
            assert found[name]["meta"]["spec_num_correct_drafts"] > 4, name


def test_hidden_states_and_logprobs_of_named_tokens(answered):
    """Hidden states are returned for the prompt and for each emitted token except the last."""
    expected, found, _ = answered
    states = [answer["hidden states"]["meta"]["hidden_states"] for answer in (expected, found)]
    assert flat(states[1]) == pytest.approx(flat(states[0]), abs=1e-3)
    assert all(len(step) == 3 for step in found["logprobs of tokens"]["meta"]["output_token_ids_logprobs"])


@pytest.mark.parametrize("name", [*PLAIN, *DRAFTED])
def test_answers_count_the_drafts_that_were_verified(name, answered):
    """But not those of the step that overlapped scheduling runs after a request's end."""
    _, found, counts = answered
    meta, (steps, tokens) = found[name]["meta"], counts[name]
    assert 0 <= steps - meta["spec_verify_ct"] <= 1
    assert 0 <= tokens - meta["spec_num_proposed_drafts"] <= 8 * (steps - meta["spec_verify_ct"])
    assert meta["spec_num_correct_drafts"] <= meta["spec_num_proposed_drafts"]
    expected = meta["spec_num_correct_drafts"] / max(meta["spec_num_proposed_drafts"], 1)
    assert meta["spec_accept_rate"] == pytest.approx(expected)


def test_what_is_requested_for_is_done(answered, under_grammars):
    """Both engines could ignore the parameters, so their effects are checked."""
    found = {**under_grammars[1], **answered[1]}
    ordinary = {
        "frequency": "ordinary",
        "frequency and presence": "ordinary edit",
        "processor": "ordinary",
        "biased": "ordinary",
    }
    ordinary |= dict.fromkeys(["presence", "repetition", "min new tokens"], "ordinary")
    for name, other in ordinary.items():
        reported = [flat(found[which]["meta"].get("output_token_logprobs")) for which in (name, other)]
        same = found[name]["token_ids"] == found[other]["token_ids"]
        assert not same or (reported[0] and reported[0] != pytest.approx(reported[1], abs=1e-3)), name
    assert not {*found["processor"]["token_ids"]} & {*DIGITS}
    assert {*found["ordinary"]["token_ids"]} >= {*DIGITS, NEWLINE}
    assert not {NEWLINE} & {*found["biased"]["token_ids"], *found["biased and penalised"]["token_ids"]}
    assert NEWLINE not in found["min new tokens"]["token_ids"][:17]
    assert len(found["min new tokens"]["token_ids"]) > 17
    stated = tokenizer().decode(found["regex and processor"]["token_ids"])
    assert "1" not in stated
    assert "=" in stated


# -- at temperature 1 -----------------------------------------------------------------------------------------------

MIN_P = 0.3


def by_min_p() -> torch.Tensor:
    """Return the toy's distribution [V, V] over tokens at least `MIN_P` times as likely as the likeliest."""
    return toy.cut(lambda ranked: sum(prob >= MIN_P * ranked[0] for prob in ranked))


@pytest.fixture(scope="session")
def toys(small: Callable[..., Engine]) -> Engine:
    return small(
        "SPECPLUG",
        sampling=True,
        overlap=False,
        environment={"SPECPLUG_CONFIG": json.dumps({**NGRAM, "faults": {"host_deadline_ms": None}})},
    )


def test_min_p_beside_ordinary_requests(toys):
    """Each request follows its own distribution, in shared steps."""
    distribution = {MIN_P: by_min_p(), 0.0: toy.distribution()}
    shared = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True}
    params = [{**shared, "min_p": min_p} for _ in range(128) for min_p in distribution]
    found = toys.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=params)
    for own, each in distribution.items():
        answers = [answer for given, answer in zip(params, found, strict=True) if given["min_p"] == own]
        assert toy.p_value([answer["token_ids"] for answer in answers], each) > 1e-4
        accepted = sum(answer["meta"]["spec_num_correct_drafts"] for answer in answers)
        assert accepted == 0 if own else accepted > 200
