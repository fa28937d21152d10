"""A model that reasons, with drafts of whole answers: a draft crosses the end of the reasoning, or a stop in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tests.engines.plain import ids
from tests.engines.suites.served import Answer, Params, Served, drafts_of

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
JSON = {"structured_outputs": {"json": SCHEMA}}
PROMPT = ids("How warm is it?")
ORACLE = {"proposer": "ngram", "extra_proposers": ["oracle"], "policy": "fixed"}
ENDED = "terminated after accepting the stop token"


class ReasoningSuite:
    """Attributes:
    how: what launches the engines; `model` names the folder.
    """

    how: ClassVar[dict[str, Any]]
    model: ClassVar[str]

    @pytest.fixture(scope="class")
    def truth(self, start: Callable[..., Served], scripted_model: str) -> Served:
        return start(None, name="plain, reasoning", **{self.model: scripted_model}, **self.how)

    @pytest.fixture(scope="class")
    def ours(self, start: Callable[..., Served], scripted_model: str) -> Served:
        return start(ORACLE, name="reasoning", draft_length=4, **{self.model: scripted_model}, **self.how)

    def answered(self, served: Served, params: Params, drafts: list[int] | None = None) -> Answer:
        """Return an answer with log-probabilities, for which `drafts` were made."""
        own = {"logprobs": 0, "reasoning": True, **params, **(drafts_of(drafts) if drafts else {})}
        return served.generate([PROMPT], own)[0]

    def assert_same(self, expected: Answer, found: Answer) -> None:
        for key in ("token_ids", "text", "finish_reason", "stop_reason"):
            assert found[key] == expected[key], key

    def test_json_follows_the_reasoning(self, truth, ours):
        """A grammar holds from the end of the reasoning on, in the middle of a draft; no noise at its own end."""
        expected, free = (self.answered(truth, params) for params in (JSON, {}))
        assert json.loads(expected["text"].partition("</think>")[2]) == {"city": "Oslo", "unit": "C"}
        assert free["text"] != expected["text"]
        for drafts in (expected["token_ids"], free["token_ids"], [*expected["token_ids"], *PROMPT, *PROMPT]):
            self.assert_same(expected, self.answered(ours, JSON, drafts))
        assert ENDED not in ours.engine.log()

    def test_stops_within_the_reasoning(self, truth, ours):
        """The text ends where the first stop is complete, and not as far as the draft was right."""
        whole = self.answered(truth, {})
        for stops in (
            {"stop": ["the unit", "comes", "about"]},
            {"stop": ["about", "comes", "the unit"], "include_stop_str_in_output": True},
            {"stop": ["Oslo.\nF", "never"]},
            {"max_tokens": 6},
            {"stop_token_ids": [whole["token_ids"][5]]},
        ):
            found = self.answered(ours, stops, whole["token_ids"])
            self.assert_same(self.answered(truth, stops), found)
            assert "</think>" not in found["text"]
