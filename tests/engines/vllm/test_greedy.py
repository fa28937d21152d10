"""Greedy output equals unmodified vLLM's, token for token, on every runner and for every kind of proposer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engines.engines import Engine
from tests.engines.vllm import watching
from tests.engines.vllm.referee import MAX_TOKENS, Answers, assert_greedy, fields, forward, prompts, reported

PROMPTS = [list(prompt) for prompt in prompts()]  # three times as many as an engine runs at once


def wrong(tokens: list[int]) -> list[int]:
    """Return other tokens, each of them wrong."""
    return [(token + 1) % 2048 for token in tokens]


def err(tokens: list[int]) -> list[int]:
    """Return tokens of which each fifth is wrong."""
    return [(token + 1) % 2048 if place % 5 == 4 else token for place, token in enumerate(tokens)]


PROPOSERS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "ngram": lambda answer: {},
    "oracle": reported,
    "often right": lambda answer: reported(err(answer)),
    "always wrong": lambda answer: reported(wrong(answer)),
    "bigram": lambda answer: fields(proposer="bigram"),
    "spliced": lambda answer: fields(proposer="spliced"),
    "off": lambda answer: fields(enabled=False),
}


def ask(engine: Engine, truth: Answers, names: list[str]) -> dict[str, Any]:
    """Answer all prompts, their proposers taken from `names` in turn; returns what `watching.counted` does."""
    params = [
        {"max_tokens": MAX_TOKENS, **PROPOSERS[names[index % len(names)]](answer["token_ids"])}
        for index, answer in enumerate(truth)
    ]
    found = engine.call("watching.counted", prompts=PROMPTS, params=params)
    assert_greedy(PROMPTS, truth, found["result"])
    assert not found["faults"]
    return found


def test_baseline_is_the_plain_model(truth):
    """Both runners' answers without specplug agree with a plain forward, at least at the first tokens."""
    for prompt, answer in list(zip(PROMPTS, truth, strict=True))[::5]:
        context = list(prompt)
        for token in answer["token_ids"][:6]:
            assert int(forward(context).argmax()) == token
            context.append(token)


def test_all_proposers_in_one_batch(zoo, truth):
    """Rows of different proposers, and without one, share steps."""
    found = ask(zoo, truth, list(PROPOSERS))
    by_source = found["by_source"]
    assert by_source["ngram/own text"]["accepted"] > 0
    assert sum(each["accepted"] for source, each in by_source.items() if source.startswith("spliced/")) > 0
    assert by_source["bigram"]["accepted"] > 0
    oracle = by_source["oracle"]
    assert oracle["accepted"] > 200
    assert oracle["rejected"] > 50, "the wrong ones were not tried"


def test_drafts_longer_than_the_rest(zoo, truth):
    """The oracle drafts tokens after the end; neither limits nor stops let them through."""
    answers = [answer["token_ids"] for answer in truth[:8]]
    params = [{"max_tokens": MAX_TOKENS, **reported([*answer, *answer, *answer])} for answer in answers]
    found = zoo.call("watching.counted", prompts=PROMPTS[:8], params=params)
    assert_greedy(PROMPTS[:8], truth[:8], found["result"])
    assert found["total"]["accepted"] > 100


def test_caps_of_requests(zoo, truth):
    """Per-request draft lengths 0 to the server's, and switched off, in one batch; each row keeps to its own."""
    caps = [*range(9), None]
    params, requested = [], []
    for index, answer in enumerate(truth[: len(caps)]):
        own = {"enabled": False} if caps[index] is None else {"num_speculative_tokens": caps[index]}
        params.append({"max_tokens": MAX_TOKENS, **reported(answer["token_ids"], **own)})
        requested.append({"id": f"q{index}", "prompt": PROMPTS[index], "params": params[-1]})
    found = zoo.call(watching.watched, requests=requested)
    assert_greedy(PROMPTS[: len(caps)], truth[: len(caps)], [found["outputs"][f"q{i}"] for i in range(len(caps))])
    for index, cap in enumerate(caps):
        longest = max(row["proposed"] for row in found["rows"][f"q{index}"])
        long = len(truth[index]["token_ids"]) > 12
        assert longest == (cap or 0) if long else longest <= (cap or 0)
    assert sum(len(answer["token_ids"]) > 12 for answer in truth[: len(caps)]) > 6
