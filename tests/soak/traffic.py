"""Requests of a soak: a seeded, endless mix of kinds, each with what is to be expected of its answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.engines.suites.server import MISTAKES, REFERENCE
from tests.soak.truth import SAMPLING, Prompt, Truth

Kind = Literal["greedy", "long", "structured", "sampled", "aborted", "disconnected", "bad"]

SHARES: dict[Kind, float] = {
    "greedy": 46,
    "sampled": 16,
    "aborted": 10,
    "structured": 8,
    "bad": 8,
    "disconnected": 6,
    "long": 6,
}
"""Of a hundred requests, on average."""

TENANTS = ("acme", "bolt", "torn")
CORPORA = tuple(f"corpus {number}" for number in range(4))
"""Names of corpora that come and go; requests name them whether they are there or not."""

API_KEYS = (None, "one", "two")


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        kind: "greedy", "long" and "structured" must give the known answer; "sampled" must follow the model's
            distribution; "aborted" leaves its stream after some events, which must be a prefix of the known answer;
            "disconnected" leaves while it waits; "bad" must be refused with `refusal`.
        variant, fields: which fields of specplug it has, for the report, and these fields by their flat keys.
        events: of its stream that an aborted request waits for.
        seconds: that a disconnected request waits.
        sampling: index into `truth.SAMPLING` of a sampled request.
        refusal: text that the refusal of a bad request contains.
        api_key: of the client, which keeps its responses apart from other clients'.
    """

    number: int
    kind: Kind
    prompt: Prompt
    variant: str = "none"
    fields: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 0
    stream: bool = False
    events: int = 0
    seconds: float = 0.0
    sampling: int = 0
    refusal: str = ""
    api_key: str | None = None

    @property
    def expected(self) -> tuple[int, ...]:
        """The known answer of a greedy request."""
        return self.prompt.answer[: self.max_tokens]


class Traffic:
    """The mix, which `seed` determines.

    Requests may name the proposers, of which "oracle" is given the answer, and "retrieval" corpora.
    """

    def __init__(self, truth: Truth, seed: int, proposers: tuple[str, ...], shortest: int = 4) -> None:
        self._truth, self._proposers, self._shortest = truth, proposers, shortest
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[Request]:
        number = 0
        while True:
            yield self._request(number)
            number += 1

    def _request(self, number: int) -> Request:
        chance = self._random
        [kind] = chance.choices(list(SHARES), list(SHARES.values()))
        prompt = chance.choice(self._truth.pool(kind))
        stream, api_key = chance.random() < 0.5, chance.choice(API_KEYS)
        if kind == "bad":
            fields, refusal = chance.choice(MISTAKES)
            return Request(number, kind, prompt, "bad", fields, 4, stream, refusal=refusal, api_key=api_key)
        variant, fields = self._fields(prompt)
        request = Request(number, kind, prompt, variant, fields, len(prompt.answer), stream, api_key=api_key)
        changes: dict[str, Any] = {}
        if kind == "greedy":
            changes["max_tokens"] = chance.randint(min(self._shortest, len(prompt.answer)), len(prompt.answer))
        elif kind == "sampled":
            changes |= {"sampling": chance.randrange(len(SAMPLING)), "max_tokens": self._truth.sampled_tokens}
        elif kind == "aborted":
            changes |= {"stream": True, "events": chance.randint(0, 4)}
        elif kind == "disconnected":
            changes |= {"stream": False, "seconds": chance.uniform(0.0, 0.3)}
        return replace(request, **changes)

    def _fields(self, prompt: Prompt) -> tuple[str, dict[str, Any]]:
        """Return specplug's fields of one request, and their name."""
        chance = self._random
        corpora = [chance.choice(CORPORA)]
        choices: dict[str, dict[str, Any]] = {
            "none": {},
            "disabled": {"enabled": False},
            "short drafts": {"num_speculative_tokens": chance.randint(0, 3)},
            "reference": {"references": [{"text": REFERENCE, "name": "area"}]},
            "answer as reference": {"references": [{"token_ids": list(prompt.answer) or [5]}]},
            "prediction": {"prediction": {"type": "content", "content": REFERENCE}},
            "tenant": {"tenant": chance.choice(TENANTS)},
            "not stored": {"store": False},
            "corpora": {"corpora": corpora, "documents": ["a", "b"]},
        }
        named = {name: {"proposer": name} for name in self._proposers}
        if "oracle" in named:
            named["oracle"] |= choices["answer as reference"]
        if "retrieval" in named:
            named["retrieval"] |= (
                {"corpora": corpora, "tenant": chance.choice(TENANTS)} if chance.random() < 0.5 else {}
            )
        choices |= named
        variant = chance.choice(list(choices))
        fields = choices[variant]
        return variant, {"specplug": json.dumps(fields)} if fields else {}
