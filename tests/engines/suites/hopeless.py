"""The policy `batch` gives up drafts that do not pay, and they do no harm to others: exact counts, also of padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tests.engines.hopeless import TEXT, assert_forgotten, assert_given_up
from tests.engines.suites.served import Served


class HopelessSuite:
    """Attributes:
    settings: of the proposer `ngram`, fixed.
    how: what launches the engine; it samples.
    tokens: by kind, lengths of answers: of one after whose half drafts have to be given up, and of one that is as long
        as it takes to spoil what a slot remembers.
    """

    settings: ClassVar[dict[str, Any]] = {"proposer": "ngram", "policy": "fixed"}
    how: ClassVar[dict[str, Any]] = {}
    tokens: ClassVar[dict[str, tuple[int, int]]]

    def planned_by_batch(self, served: Served, params: dict[str, Any], count: int, without: bool) -> list[Any]:
        """Serve so many of `file_prefixes` under the policy; return the counts of its steps.

        Args:
            without: proposers have no texts; return what steps with drafts report.
        """
        raise NotImplementedError

    def test_drafts_that_do_not_pay_are_given_up(self, start: Callable[..., Served], kind):
        tokens = self.tokens[kind][0]
        served = start(self.settings, name="ngram")
        counts = self.planned_by_batch(served, {**TEXT, "max_tokens": tokens}, 4, without=False)
        assert_given_up(counts, tokens, tokens // 2)

    def test_rows_that_could_not_draft_are_no_evidence(self, start, kind):
        served = start(self.settings, name="ngram")
        found = self.planned_by_batch(served, {**TEXT, "max_tokens": 20}, 2, without=True)
        assert found
        assert [report for report in found if any(report)] == []

    def test_easy_requests_in_their_slots_are_drafted_for_as_before(self, start, kind):
        served = start(self.settings, name="ngram", **self.how)

        def share(prompts: list[list[int]], hopeless: bool) -> float:
            long = {**TEXT, "max_tokens": self.tokens[kind][1]}
            found = served.counted(prompts, long if hopeless else {"max_tokens": 24, "specplug": {"store": False}})
            return float(found["total"]["accepted"] / sum(len(answer["token_ids"]) for answer in found["answers"]))

        assert_forgotten(share)
