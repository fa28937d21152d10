"""A server of two data-parallel engines of a dense model: each drafts for its requests, and the text is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.server import Server

GIVEN = prompts()[:8]
LENGTH = 24


@pytest.mark.slow  # two engines and a server, each with a process of its own
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_both_ranks_draft_and_the_text_is_right(runner, serve: Callable[..., Server]):
    settings = {"proposer": "ngram", "policy": "fixed"}
    server = serve(runner, settings, data_parallel_size=2, endpoints=True, name=f"two data-parallel ranks {runner}")
    client = server.client()

    def answer(prompt: tuple[int, ...]) -> dict[str, Any]:
        found = client.completions.create(
            model=server.model,
            prompt=list(prompt),
            temperature=0.0,
            max_tokens=LENGTH,
            extra_body={"return_token_ids": True},
        )
        (choice,) = found.choices
        stop = greedy(prompt, LENGTH)["stop_reason"] if choice.finish_reason == "stop" else None
        return {"token_ids": choice.token_ids, "finish_reason": choice.finish_reason, "stop_reason": stop}

    with ThreadPoolExecutor(len(GIVEN)) as threads:
        answers = list(threads.map(answer, GIVEN))
    assert_greedy(GIVEN, [greedy(prompt, LENGTH) for prompt in GIVEN], answers)
    engines = json.loads(server.get("/specplug/status"))["engines"]
    assert len(engines) == 2
    assert all(engine["runner"] == runner for engine in engines)
    assert all(engine["workers"][0]["metrics"]["total"]["accepted"] > 20 for engine in engines)
