"""Greedy output equals unmodified vLLM's, token for token, on every runner and for every kind of proposer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

from tests.engines.vllm import watching
from tests.engines.vllm.referee import MAX_TOKENS, assert_greedy, fields, prompts, reported

PROMPTS = [list(prompt) for prompt in prompts()]  # three times as many as an engine runs at once


def err(tokens: list[int], every: int = 5) -> list[int]:
    """Return tokens of which each n-th is wrong."""
    return [(token + 1) % 2048 if (place + 1) % every == 0 else token for place, token in enumerate(tokens)]


PROPOSERS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "ngram": lambda answer: {},
    "oracle": reported,
    "often right": lambda answer: reported(err(answer)),
    "always wrong": lambda answer: reported(err(answer, every=1)),
    "bigram": lambda answer: fields(proposer="bigram"),
    "spliced": lambda answer: fields(proposer="spliced"),
    "off": lambda answer: fields(enabled=False),
}


def test_all_proposers_in_one_batch(zoo, truth):
    """Rows of different proposers, and without one, share steps."""
    ways = cycle(PROPOSERS.values())
    params = [{"max_tokens": MAX_TOKENS, **next(ways)(answer["token_ids"])} for answer in truth]
    found = zoo.call(watching.counted, prompts=PROMPTS, params=params)
    assert_greedy(PROMPTS, truth, found["result"])
    assert not found["faults"]
    by_source = found["by_source"]
    assert by_source["ngram/own text"]["accepted"] > 0
    assert sum(each["accepted"] for source, each in by_source.items() if source.startswith("spliced/")) > 0
    assert by_source["bigram"]["accepted"] > 0
    oracle = by_source["oracle"]
    assert oracle["accepted"] > 200
    assert oracle["rejected"] > 50, "the wrong ones were not tried"


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
