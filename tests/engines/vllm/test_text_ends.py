"""What is remembered of a response whose last steps made no drafts: all that the client got."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.vllm import steps
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.steps import requests
from tests.engines.vllm.watching import drafting


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("runner", ["v1", "v2", "v2_async"])
def test_a_response_is_remembered_to_its_end(engine: Any, runner: str, drafts: int) -> None:
    settings = {"proposer": "ngram", "policy": "fixed"}
    found = engine(**RUNNERS[runner], specplug=settings, name="ends").call(
        remembered, requested=requests(2, tokens=24), drafts=drafts
    )
    assert len(found["response"]) == 24
    assert found["drafted"] == (drafts > 0)
    texts = " ".join(map(str, found["ring"]))
    assert " ".join(map(str, found["response"])) in texts


def remembered(llm: Any, requested: list[dict[str, Any]], drafts: int) -> dict[str, Any]:
    """Run a request, and another one, whose first step tells the worker of the end of the first one."""
    state = drafting(llm).stage.runners[0].handle.proposer.steps.state
    before = int(state.end)
    first, second = requested
    run = steps.recorded(llm, [first], gamma=drafts)
    steps.recorded(llm, [second], gamma=0)
    return {
        "response": run["outputs"][first["id"]]["token_ids"],
        "drafted": any(step["requested"] for step in run["record"]),
        "ring": state.ring[before : int(state.end)].tolist(),
    }
