"""An engine's start compiles all that serving runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.engines import signatures
from tests.engines.plain import prompts
from tests.engines.suites.served import Served

GIVEN = [list(prompt) for prompt in prompts()[:6]]
SETTINGS = {"proposer": "ngram", "policy": "fixed", "options": {"fixed": {"token_budget": 9}}}
KINDS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 500, "ignore_eos": True},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 0.8},
    {"specplug": {"references": [{"token_ids": GIVEN[0]}], "num_speculative_tokens": 2}},
    {"stop_token_ids": [7], "max_tokens": 1},
]


class StreamSuite:
    """The engine's class starts `cold` engines, which have compiled only what their own start has."""

    def cold(self, start: Callable[..., Served], proposer: str = "ngram", **how: Any) -> Served:
        settings = {**SETTINGS, "proposer": proposer}
        return start(settings, name=f"{proposer}, cold", environment={signatures.COLD: "1"}, **how)

    def assert_compiles_nothing(self, served: Served) -> None:
        before = served.inside(signatures.seen)
        assert len(before) > 1
        assert served.counts()["total"]["proposed"] == 0, "the engine is new"
        # One after another: vLLM's V1 runner cannot read a seeded request's prompt in pieces on a CPU.
        requests: list[dict[str, Any]] = [
            {"id": f"r{number}", "prompt": prompt, "params": own, "after": [f"r{number - 1}", 1]}
            for number, (prompt, own) in enumerate(zip(GIVEN, KINDS, strict=True))
        ]
        del requests[0]["after"]
        served.recorded(requests, {"r1": ["r1", 300]})
        served.generate(GIVEN, {"max_tokens": 20}, together=True)
        assert served.counts()["total"]["accepted"] > 0
        assert served.inside(signatures.since, before=before) == []

    def test_serving_compiles_nothing(self, start):
        self.assert_compiles_nothing(self.cold(start))
