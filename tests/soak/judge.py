"""Judgement of outcomes: wrong tokens, wrong statuses, and the distribution of sampled tokens."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import jsonschema

from specplug.testing.equality import GStatistic, judge_greedy
from tests.engines.plain import forward, tokenizer
from tests.soak.client import Outcome
from tests.soak.traffic import Request
from tests.soak.truth import SAMPLING, Prompt, statistic_of

LEAST_P = 1e-4
FINISHED = ("stop", "length")
MOST_LISTED = 20


@dataclass
class Judge:
    """Judges outcomes one by one, and keeps counts of them: by kind, by specplug's fields, and of clients that left.

    Attributes:
        compared, tokens: completed outputs that were compared with a known answer; their tokens, and those of prefixes.
        wrong: outputs with another token than the control's.
        failed: requests with another status, reason to finish or refusal than expected.
        near_ties: outputs that differ where two tokens are all but equally likely.
        problems: what was wrong, in words, at most `MOST_LISTED`.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    tokens: int = 0
    wrong: int = 0
    failed: int = 0
    near_ties: int = 0
    problems: list[str] = field(default_factory=list)
    _sampled: dict[tuple[Prompt, int], list[tuple[int, ...]]] = field(default_factory=dict)

    def take(self, outcome: Outcome) -> None:
        """Judge one outcome."""
        request = outcome.request
        self.kinds[request.kind] += 1
        self.variants[request.variant] += 1
        self.left.update([request.kind] * outcome.left)
        if request.kind == "bad":
            if outcome.status != 400 or request.refusal not in _message(outcome.text):
                self._fail(outcome, "is not refused as expected")
        elif outcome.status != 200:
            self._fail(outcome, "failed")
        elif outcome.left:
            self._compare(outcome, request.expected[: len(outcome.token_ids)])
        elif outcome.finish_reason not in FINISHED:
            self._fail(outcome, f"finished by {outcome.finish_reason!r}")
        elif request.kind == "sampled":
            length = len(outcome.token_ids)
            if not length or (outcome.finish_reason == "length" and length != request.max_tokens):
                self._fail(outcome, f"has {length} tokens of {request.max_tokens}, {outcome.finish_reason}")
            self._sampled.setdefault((request.prompt, request.sampling), []).append(outcome.token_ids)
        else:
            self.compared += 1
            self._compare(outcome, request.expected)
            if request.prompt.schema is not None and outcome.finish_reason == "stop":
                self._validate(outcome)

    def sampled(self) -> dict[str, GStatistic]:
        """Return the statistic of sampled tokens for each kind of sampling of which there are enough outputs."""
        totals: dict[int, GStatistic] = {}
        for (prompt, sampling), outputs in self._sampled.items():
            totals[sampling] = totals.get(sampling, GStatistic()) + statistic_of(prompt, outputs, SAMPLING[sampling])
        return {json.dumps(SAMPLING[number]): total for number, total in sorted(totals.items()) if total.freedom}

    def _compare(self, outcome: Outcome, expected: tuple[int, ...]) -> None:
        self.tokens += len(outcome.token_ids)
        if outcome.token_ids == expected:
            return
        report = judge_greedy(forward, [outcome.request.prompt.token_ids], [expected], [outcome.token_ids])
        if report.near_ties and outcome.request.prompt.schema is None:
            self.near_ties += 1
        else:
            self.wrong += 1
            self._list(outcome.request, f"has wrong tokens: {report.failures or report.near_ties}")

    def _validate(self, outcome: Outcome) -> None:
        try:
            text = tokenizer().decode(list(outcome.token_ids), skip_special_tokens=True)
            jsonschema.validate(json.loads(text), outcome.request.prompt.schema)
        except (ValueError, jsonschema.ValidationError) as error:
            self._fail(outcome, f"does not follow its schema, {str(error)[:100]}")

    def _fail(self, outcome: Outcome, what: str) -> None:
        self.failed += 1
        self._list(outcome.request, f"{what}: status {outcome.status}, {outcome.text[:200]}")

    def _list(self, request: Request, what: str) -> None:
        if len(self.problems) < MOST_LISTED:
            self.problems.append(f"request {request.number}, {request.kind}, {request.variant}: {what}")


def _message(text: str) -> str:
    """Return the message of a refusal."""
    try:
        found = json.loads(text)
        return str(found.get("error", found)["message"])
    except (ValueError, KeyError, TypeError):
        return text
