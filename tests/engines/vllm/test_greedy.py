"""Greedy output equals unmodified vLLM's, token for token, on every runner and for every kind of proposer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

from tests.engines.plain import MAX_TOKENS, assert_greedy, prompts
from tests.engines.suites.served import drafts_of

PROMPTS = [list(prompt) for prompt in prompts()]  # three times as many as an engine runs at once


def err(tokens: list[int], every: int = 5) -> list[int]:
    """Return tokens of which each n-th is wrong."""
    return [(token + 1) % 2048 if (place + 1) % every == 0 else token for place, token in enumerate(tokens)]


PROPOSERS: dict[str, Callable[[list[int]], dict[str, Any]]] = {
    "ngram": lambda answer: {},
    "oracle": drafts_of,
    "often right": lambda answer: drafts_of(err(answer)),
    "always wrong": lambda answer: drafts_of(err(answer, every=1)),
    "bigram": lambda answer: {"specplug": {"proposer": "bigram"}},
    "spliced": lambda answer: {"specplug": {"proposer": "spliced"}},
    "capped": lambda answer: drafts_of(answer, num_speculative_tokens=2),
    "off": lambda answer: {"specplug": {"enabled": False}},
}


def test_all_proposers_in_one_batch(zoo, truth):
    """Rows of different proposers, and without one, share steps."""
    ways = cycle(PROPOSERS.values())
    params = [{"max_tokens": MAX_TOKENS, **next(ways)(answer["token_ids"])} for answer in truth]
    found = zoo.call("served.counted", prompts=PROMPTS, params=params)
    assert_greedy(PROMPTS, truth, found["answers"])
    assert not found["faults"]
    by_source = found["by_source"]
    assert by_source["ngram/own text"]["accepted"] > 0
    assert sum(each["accepted"] for source, each in by_source.items() if source.startswith("spliced/")) > 0
    assert by_source["bigram"]["accepted"] > 0
    oracle = by_source["oracle"]
    assert oracle["accepted"] > 200
    assert oracle["rejected"] > 50, "the wrong ones were not tried"
