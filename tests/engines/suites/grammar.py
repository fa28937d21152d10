"""Grammars draft what they force, and drafts are cut at what they forbid, before the engine verifies anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from tests.engines.matchers import KEYS, REGEX, allows, matcher
from tests.engines.suites.features import EDIT, LOOP, NEWLINE, assert_same
from tests.engines.suites.served import Params, Served

LOOKUP = {"proposer": "ngram-reference", "policy": "fixed", "options": {"ngram-reference": {"min_n": 1}}}
"""It remembers no other requests, so that each run of a test drafts alike."""
CONSTRAINED = ["schema", "schema in a loop", "regex"]
Ran = dict[str, Any]


class GrammarSuite:
    """Attributes:
    how, plain: what launches the engine with drafts, and the one without; no whitespace is allowed in JSON.
    json: parameters that ask for `schema`.
    matcher: how a matcher of `schema` is compiled to say the same.
    more: further requests of the batch.
    """

    how: ClassVar[dict[str, Any]]
    plain: ClassVar[dict[str, Any]]
    json: ClassVar[Params]
    matcher: ClassVar[dict[str, Any]]
    more: ClassVar[dict[str, tuple[list[int], Params]]] = {}

    def requested(self) -> dict[str, tuple[list[int], Params]]:
        return {
            "schema": (EDIT, {**self.json, "max_tokens": 128}),
            "schema in a loop": (LOOP, {**self.json, "max_tokens": 128, "logprobs": 1}),
            "regex": (LOOP, {"structured_outputs": {"regex": REGEX}}),
            "plain": (LOOP, {"ignore_eos": True}),
            **self.more,
        }

    @pytest.fixture(scope="class")
    def ours(self, start: Callable[..., Served]) -> Served:
        return start(LOOKUP, name="grammars", **self.how)

    @pytest.fixture(scope="class")
    def expected(self, start: Callable[..., Served]) -> dict[str, Any]:
        requested = self.requested()
        given = [prompt for prompt, _ in requested.values()], [params for _, params in requested.values()]
        answers = start(None, name="plain grammars", **self.plain).generate(*given, together=True)
        return dict(zip(requested, answers, strict=True))

    def plant(self, served: Served, how: str, token: int) -> None:
        """Begin to watch steps, and let proposers "offer" a token over and over to rows with a grammar, or "leave out"
        what grammars would do, or let grammars "raise"."""
        raise NotImplementedError

    def steps(self, served: Served) -> list[dict[str, Any]]:
        """Return each row of each step since `plant`, which is undone.

        A row has "row", the number of its request; "before", its output; "verified" and "accepted" drafts;
        and "levels", the confidence of each verified draft.
        """
        raise NotImplementedError

    def ran(self, served: Served, how: str) -> Ran:
        """Serve the batch with a plant; return "answers" by name, "steps", and what was counted meanwhile."""
        requested = self.requested()
        given = [prompt for prompt, _ in requested.values()], [params for _, params in requested.values()]
        before = served.counts()
        self.plant(served, how, NEWLINE)
        try:
            answers = served.generate(*given, together=True)
        finally:
            steps = self.steps(served)
        after = served.counts()
        grown = {
            name: {key: of[key] - before["by_source"].get(name, {}).get(key, 0) for key in COUNTED}
            for name, of in after["by_source"].items()
        }
        first = min((step["row"] for step in steps), default=0)
        names = list(requested)
        steps = [{**step, "name": names[step["row"] - first]} for step in steps]
        return {
            "answers": dict(zip(names, answers, strict=True)),
            "steps": steps,
            "counts": grown,
            **self.faults(after),
        }

    def faults(self, counts: dict[str, Any]) -> dict[str, Any]:
        """Return under "faults" the grammars' own."""
        return {"faults": counts["faults"].get("grammar", {})}

    @pytest.fixture(scope="class")
    def completed(self, ours: Served) -> Ran:
        return self.ran(ours, "watch")

    @pytest.fixture(scope="class")
    def left_out(self, ours: Served) -> Ran:
        return self.ran(ours, "leave out")

    @pytest.fixture(scope="class")
    def misled(self, ours: Served) -> Ran:
        return self.ran(ours, "offer")

    def test_as_without_speculation(self, expected, completed, misled, left_out):
        for name in self.requested():
            for ran in (completed, misled, left_out):
                assert_same(expected[name], ran["answers"][name])
        for name in CONSTRAINED[:2]:
            assert list(json.loads(expected[name]["text"])) == [*KEYS], "they are what the grammar says"

    def test_forced_tokens_are_always_accepted(self, completed):
        """No token of confidence 1 is ever the first that is refused."""
        forced = 0
        for name in CONSTRAINED:
            for step in of(completed, name):
                kept = step["accepted"]
                assert kept == len(step["verified"]) or step["levels"][kept] < 1.0
                forced += sum(level == 1.0 for level in step["levels"][:kept])
        assert forced > 20

    def test_they_save_steps(self, completed, left_out):
        """A step emits its accepted tokens and one more."""
        for name in CONSTRAINED[:2]:
            saved, without = (sum(step["accepted"] for step in of(ran, name)) for ran in (completed, left_out))
            assert without + 5 < saved < len(completed["answers"][name]["token_ids"])

    def test_only_legal_tokens_are_verified(self, completed, misled):
        """A matcher of this process checks that; it follows each text and its draft from the start."""
        for name in CONSTRAINED:
            after = matcher(REGEX) if name == "regex" else matcher(**self.matcher)
            verified = 0
            for ran in (completed, misled):
                for step in of(ran, name):
                    assert allows(after, step["before"] + step["verified"])
                    verified += len(step["verified"])
            assert verified > 20

    def test_illegal_drafts_cost_nothing(self, misled):
        """A newline is illegal throughout; what grammars add stays."""
        for name in CONSTRAINED[:2]:
            assert not any(NEWLINE in step["verified"] for step in of(misled, name))
            assert sum(1.0 in step["levels"] for step in of(misled, name)) > 5
        assert sum(own["cut_by_grammar"] for own in misled["counts"].values()) > 80

    def test_counted_apart(self, completed, misled):
        for ran in (completed, misled):
            counts = ran["counts"]
            steps = [step for step in ran["steps"] if "accepted" in step]
            assert counts["grammar"]["proposed"] == counts["grammar"]["verified"] > 0
            assert sum(len(step["verified"]) for step in steps) == sum(own["verified"] for own in counts.values())
            accepted = sum(min(step["accepted"], len(step["verified"])) for step in steps)
            assert accepted == sum(own["accepted"] for own in counts.values())
            assert counts["grammar"]["accepted"] > 20

    def test_a_grammar_that_raises_costs_what_it_would_add(self, ours, expected):
        found = self.ran(ours, "raise")
        for name in self.requested():
            assert_same(expected[name], found["answers"][name])
        assert found["faults"]["raised"] >= 1
        assert not found["counts"]["grammar"]["proposed"]


COUNTED = ("proposed", "verified", "accepted", "cut_by_grammar")


def of(ran: Ran, name: str) -> Iterator[dict[str, Any]]:
    """Return the steps of a request that was not known to have ended."""
    return (step for step in ran["steps"] if step["name"] == name and "accepted" in step)
