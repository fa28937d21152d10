"""Requests that SGLang's verification serves inexactly get no drafts, and so the output of plain decoding.

In the same batches other requests are drafted for.  Each pair of engines gets its requests in one prefill: overlapped,
SGLang itself counts penalties a token late, and otherwise by what was prefilled when.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specplug.testing.statistics import g_test
from tests.engines import toy
from tests.engines.plain import ids, prompts, tokenizer
from tests.engines.sglang import inside, trees, watching
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_sampling import cut, sample, saved, small

__all__ = ["saved", "small"]

NGRAM = {"proposer": "ngram", "policy": "fixed", "options": {"ngram": {"min_n": 1}}}
SERVED: dict[str, Any] = {
    "enable_custom_logit_processor": True,
    "enable_return_hidden_states": True,
    "chunked_prefill_size": 64,
    "max_running_requests": 24,
}
"""Engines of these tests, and of those of features."""

LOOP = ids("x = 1\ny = 2\nx = 1\ny = 2\nx = 1\ny = 2\nx = 1\n")
EDIT = list(prompts()[0])
NEWLINE = ids("a\nb")[1]
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
        {"processors": "ban", "return_logprob": True, "top_logprobs_num": 2},
    ),
    "processor of state": (
        LOOP,
        {**LOOPING, "custom_params": {"token_ids": [NEWLINE]}},
        {"processors": "thirds"},
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
}
"""Requests of the same batch that do."""

GRAMMARS: dict[str, Requested] = {
    "regex": (LOOP, {"regex": "(x = [0-9]\n){4}y = 77"}, {}),
    "regex and penalty": (LOOP, {"regex": "([xy] = [0-9]\n){6}", "frequency_penalty": 1.5}, {}),
    "regex and processor": (
        LOOP,
        {"regex": "([xy] = [0-9]\n){6}", "custom_params": {"token_ids": DIGITS}},
        {"processors": "ban"},
    ),
    "ordinary": (LOOP, LOOPING, {}),
}
"""A batch in which grammars forbid, too."""

Counts = dict[str, tuple[int, int]]


def ask(engine: Engine, requested: dict[str, Requested]) -> dict[str, dict[str, Any]]:
    """Return the answers by name; all requests start in one prefill, or in the chunks of one."""
    engine.inside(watching.hold_back, count=len(requested))
    assert engine.call(inside.flush)
    given = {
        "prompts": [prompt for prompt, _, _ in requested.values()],
        "params": [own for _, own, _ in requested.values()],
    }
    each = {
        option: [options.get(option, default) for _, _, options in requested.values()]
        for option, default in OPTIONS.items()
        if any(option in options for _, _, options in requested.values())
    }
    answers = engine.call(generate, **given, rid=list(requested), **each)
    return dict(zip(requested, answers, strict=True))


OPTIONS: dict[str, Any] = {
    "processors": None,
    "return_logprob": False,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "token_ids_logprob": [],
    "return_hidden_states": False,
}
"""What requests may ask for beside sampling parameters, and what those get that do not."""


def generate(engine: Any, processors: list[str | None] | None = None, **given: Any) -> list[dict[str, Any]]:
    """Generate as `inside.generate` does, with custom logit processors by name."""
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor, DisallowedTokensLogitsProcessor

    class Thirds(CustomLogitProcessor):
        """Forbids tokens but where the request has a multiple of three, as far as the host knows."""

        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            for row, given in enumerate(custom_param_list):
                if len(given["__req__"].output_ids) % 3:
                    logits[row, given["token_ids"]] = -float("inf")
            return logits

    known = {None: None, "ban": DisallowedTokensLogitsProcessor.to_str(), "thirds": Thirds.to_str()}
    if processors is not None:
        given["custom_logit_processor"] = [known[name] for name in processors]
    given["input_ids"] = given.pop("prompts")
    given["sampling_params"] = [{"temperature": 0.0, "max_new_tokens": 40, **own} for own in given.pop("params")]
    return [inside.described(output) for output in engine.generate(**given)]


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
    trees.restore(scheduler)
    return dict(DRAWN)


@pytest.fixture(scope="session", params=[False, True], ids=["sync", "overlap"])
def pair(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """SGLang without speculation, and specplug; a step at a time and overlapped."""
    how = "overlapped" if request.param else "sync"
    return engine(overlap=request.param, **SERVED, name=f"plain {how}"), engine(
        "SPECPLUG",
        overlap=request.param,
        environment={"SPECPLUG_CONFIG": json.dumps({**NGRAM, "faults": {"host_deadline_ms": None}})},
        **SERVED,
        name=f"specplug {how}",
    )


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
    pair[1].inside(count_drafts)
    try:
        found = ask(pair[1], requested)
    finally:
        counts = pair[1].inside(counted)
    return expected, found, counts


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
            assert found[name]["meta"]["spec_num_correct_drafts"] > 8, name


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
    ordinary |= dict.fromkeys(["presence", "repetition", "processor of state", "min new tokens"], "ordinary")
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
PENALTY = 1.5


def by_min_p() -> torch.Tensor:
    """Return the toy's distribution [V, V] over tokens at least `MIN_P` times as likely as the likeliest."""
    return cut(toy.distribution(), lambda ranked: sum(prob >= MIN_P * ranked[0] for prob in ranked))


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


def test_a_draw_of_verification_is_found_out(toys):
    """The mistake: tokens that verification drew are kept for requests with min_p."""
    toys.inside(draw_by_verification)
    try:
        p, *_ = sample(toys, 64, distribution=by_min_p(), min_p=MIN_P)
    finally:
        assert toys.inside(trees.restore) == 2
    assert p < 1e-6


def draw_by_verification(scheduler: Any) -> None:
    from specplug_sglang.verification import acceptance

    trees.verify_always(scheduler)
    trees.put(acceptance, "sample_plainly", lambda *args: None)


def penalised(engine: Engine, answers: int = 128) -> float:
    """Return the p-value of answers under a frequency penalty, whose distribution depends on all earlier tokens.

    Each token is turned into a number that is uniform under its own distribution: a random point of its interval in the
    cumulated distribution, which has penalised tokens first.
    """
    requested = {"temperature": 1.0, "max_new_tokens": 2 * toy.PAIRS, "ignore_eos": True, "frequency_penalty": PENALTY}
    found = engine.call(inside.generate, prompts=[toy.PROMPT] * answers, params=requested)
    assert not sum(answer["meta"].get("spec_num_correct_drafts", 0) for answer in found)
    draw, places = random.Random(5), [0] * 16
    for answer in found:
        before, seen = toy.PROMPT[-1], torch.zeros(toy.VOCAB, dtype=torch.float64)
        for token in answer["token_ids"]:
            distribution = (toy.distribution()[before].log() - PENALTY * seen).softmax(-1)
            order = (-seen).argsort(stable=True)
            cumulated = distribution[order].cumsum(-1)
            place = int((order == token).nonzero())
            number = float(cumulated[place]) - draw.random() * float(distribution[token])
            places[min(int(16 * max(number, 0.0)), 15)] += 1
            before = token
            seen[token] += 1
    return g_test(torch.tensor(places).numpy(), torch.full((16,), 1 / 16).numpy())


def test_penalties_have_their_distribution_under_verification(toys):
    """As in a batch with drafts."""
    toys.inside(trees.verify_always)
    try:
        assert penalised(toys) > 1e-4
    finally:
        assert toys.inside(trees.restore) == 1


def test_penalties_applied_twice_are_found_out(toys):
    toys.inside(penalise_twice)
    try:
        p = penalised(toys, 64)
    finally:
        assert toys.inside(trees.restore) == 2
    assert p < 1e-6


def penalise_twice(scheduler: Any) -> None:
    """The mistake: what is sampled plainly starts from logits that hold the penalties, and adds them again."""
    from specplug_sglang.verification import acceptance

    def sample_plainly(sampler: Any, batch: Any, logits: Any, predict: Any, n: int) -> None:
        penalties = batch.sampling_info.acc_additive_penalties
        if penalties is not None:
            logits.next_token_logits.add_(penalties.repeat_interleave(n, 0))
        original(sampler, batch, logits, predict, n)

    trees.verify_always(scheduler)
    original = trees.put(acceptance, "sample_plainly", sample_plainly)
