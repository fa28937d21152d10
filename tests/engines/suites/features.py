"""Several requests give the same answers with drafts as without; single fields have `tests.engines.fields`."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from tests.engines.engines import Raised
from tests.engines.plain import assert_greedy, greedy, ids, prompts
from tests.engines.suites.served import Answer

NGRAM = {"proposer": "ngram", "policy": "fixed", "options": {"ngram": {"min_n": 1}}}
EDIT = list(prompts()[0])
LOOP = ids("x = 1\ny = 2\nx = 1\ny = 2\nx = 1\ny = 2\nx = 1\n")
NEWLINE = ids("a\nb")[1]
JSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "line": {"type": "integer", "maximum": 9999}},
    "required": ["name", "line"],
    "additionalProperties": False,
}


class FeaturesSuite:
    """An engine's class has a fixture `pair`: the engine without specplug, and with it.

    Attributes:
    stops: how many random combinations of stops are tried.
    room: tokens that an answer to a prompt of all but 20 of the context asks for, and how many of them it gets.
    """

    stops: ClassVar[int] = 24
    room: ClassVar[tuple[int, int]] = (100, 20)

    def test_random_stops(self, pair):
        """Several stops of every sort in one draft: the first that the text completes ends it, in whatever order."""
        stream = random.Random(5)
        strings = ["x", "y", "= 2", "1\ny", " = 1", "\n", "2\nx =", "= 1\ny = 2\n", "never"]
        params = [
            {
                "stop": stream.sample(strings, stream.randint(0, 3)),
                "stop_token_ids": stream.sample(LOOP[:8], stream.randint(0, 1)),
                "include_stop_str_in_output": stream.random() < 0.3,
                "max_tokens": stream.randint(3, 16),
                "logprobs": 1,
            }
            for _ in range(self.stops)
        ]
        expected, found = (one.generate([LOOP] * len(params), params, together=True) for one in pair)
        for wanted, given in zip(expected, found, strict=True):
            assert_same(wanted, given)
        assert {type(answer["stop_reason"]) for answer in expected} == {type(None), int, str}

    def test_requests_of_one_group_draft_from_each_other(self, pair):
        """One answers a prompt and one goes on from the beginning of its answer; a tenant has no earlier responses."""
        given = [prompt for prompt in prompts()[:8] for prompt in (prompt, (*prompt, *greedy(prompt)["token_ids"][:6]))]
        truth = [greedy(prompt) for prompt in given]
        tested = {}
        for store in (True, False):
            fields = [{"tenant": f"siblings {store}", "store": store, "group": str(row // 2)} for row in range(16)]
            found = pair[1].counted(given, [{"specplug": own} for own in fields])
            assert_greedy(given, truth, found["answers"])
            tested[store] = found["by_source"].get("ngram/response memory", {}).get("tested", 0)
        assert tested[True] > 0
        assert tested[False] == 0

    def test_prefix_caching(self, pair):
        """The second time the prompt is found in the cache, and drafts read a text that no step computed."""
        long = [EDIT[5:6] + (LOOP + EDIT) * 3]
        params = {"max_tokens": 32, "ignore_eos": True}
        (expected,) = pair[0].generate(long, params)
        for round in range(2):
            found = pair[1].counted(long, params)
            assert_same(expected, found["answers"][0])
            assert found["total"]["accepted"] > 0
            assert (found["answers"][0]["cached"] > 0) == (round == 1)

    def test_up_to_the_longest_context(self, pair):
        """A prompt of all but 20 of 1024 tokens is answered up to the limit; one that is too long is refused."""
        long = [(EDIT * 8)[: 1024 - 20]]
        params = {"max_tokens": self.room[0], "ignore_eos": True}
        (expected,) = pair[0].generate(long, params)
        found = pair[1].counted(long, params)
        assert_same(expected, found["answers"][0])
        assert len(expected["token_ids"]) == self.room[1]
        assert found["total"]["accepted"] > 0
        refusals = []
        for one in pair:
            with pytest.raises(Raised) as refused:
                one.generate([(EDIT * 8)[:1025]], {"max_tokens": 4})
            refusals.append((refused.value.type, refused.value.text))
        assert refusals[0] == refusals[1]


def assert_same(expected: Answer, found: Answer) -> None:
    """Tokens, text and reasons to stop are equal, and log-probabilities to 1e-4."""
    for key in ("token_ids", "text", "finish_reason", "stop_reason"):
        assert found[key] == expected[key], key
    for key in ("logprobs", "prompt_logprobs"):
        pairs = zip(expected.get(key, ()), found.get(key, ()), strict=True)
        for wanted, given in pairs:
            assert given == wanted if wanted is None else given == pytest.approx(wanted, abs=1e-4), key
