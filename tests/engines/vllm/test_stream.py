"""An engine's start compiles all that serving runs, and tries the stream out; a stream that fails costs drafts only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import signatures
from tests.engines.engines import Engine
from tests.engines.refusing import refused, refused_at_start
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import RUNNERS, fields, prompts

SLOW = pytest.mark.slow

CUTTING = {"policy": "fixed", "options": {"fixed": {"token_budget": 9}}}


@pytest.mark.parametrize(
    ("kind", "proposer"),
    [("v1", "ngram"), ("v2_async", "ngram"), ("v2_async", "bigram"), pytest.param("v2", "retrieval", marks=SLOW)],
)
def test_serving_compiles_nothing(kind, proposer, engine):
    """On V2 a proposer on the host drafts in the stream, and one on the device between two kernels."""
    ours = cold(engine, kind, proposer)
    found = ours.call(compiled_while_serving, prompts=[list(prompt) for prompt in prompts()[:6]])
    assert found["before"] > 1
    assert found["served"] == 0, "the engine is new"
    assert found["accepted"] > 0
    assert found["new"] == []


def cold(engine: Callable[..., Engine], kind: str, proposer: str) -> Engine:
    """Return an engine that has compiled only what its own start has."""
    given = {"specplug": {"proposer": proposer, **CUTTING}, "environment": {signatures.COLD: "1"}}
    return engine(**RUNNERS[kind], **given, name=f"{kind}, {proposer}, cold")


@pytest.mark.parametrize(("kind", "every"), [("v2_async", 1), ("v2_async", 5)])
def test_a_stream_that_refuses_steps_costs_drafts(kind, every, engine):
    streamed = cold(engine, kind, "ngram")
    given = {"prompts": [list(prompt) for prompt in prompts()[:4]], "params": {"max_tokens": 60}}
    expected = streamed.call(inside.generate, **given)
    found = streamed.call(refusing, every=every, **given)
    assert [answer["token_ids"] for answer in found["result"]] == [answer["token_ids"] for answer in expected]
    assert list(found["faults"]) == ["stream"]
    assert found["faults"]["stream"]["raised"] > 1
    assert ("switched off" in found["faults"]["stream"]) == (every == 1)
    assert (found["total"]["accepted"] > 0) == (every > 1)


@pytest.mark.parametrize("kind", ["v2_async"])
def test_a_stream_that_does_not_start_is_done_without(kind, engine):
    found = cold(engine, kind, "ngram").call(started_without)
    assert found == {"steps": None, "warned": 1, "drafts": "cpu"}


# -- inside the engine's process -------------------------------------------------------------------------------------


def refusing(llm: Any, every: int, **arguments: Any) -> dict[str, Any]:
    """Generate with a stream that refuses every n-th launch."""
    with refused(inside.runner(llm).speculator._steps, every):
        return watching.counted(llm, **arguments)


def started_without(llm: Any) -> dict[str, Any]:
    """Build what drafts once more, with a stream that refuses its first step."""
    from specplug_vllm.worker import v2

    runner = inside.runner(llm)
    with refused_at_start() as warned:
        given = runner.vllm_config, runner.device, runner.speculator._types(runner.device)
        drafting, steps = v2._steps_of(*given, has_verifier=False)
    drafting.close()
    return {"steps": steps, "warned": len(warned), "drafts": drafting.stage.runners[0].buffer.device.type}


def compiled_while_serving(llm: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """Serve requests of many kinds; return what was compiled meanwhile."""
    stage = watching.drafting(llm).stage
    served, before = stage.metrics.snapshot(), signatures.seen(llm)
    given: list[dict[str, Any]] = [
        {},
        {"max_tokens": 500, "ignore_eos": True},  # with a prompt, more tokens than a new text has trees for
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.8},
        fields(references=[{"token_ids": prompts[0]}], num_speculative_tokens=2),
        {"stop_token_ids": [7], "max_tokens": 1},
    ]
    requests = [
        {"id": f"r{number}", "prompt": prompt, "at": 3 * number, "params": {"max_tokens": 40, **own}}
        for number, (prompt, own) in enumerate(zip(prompts, given, strict=True))
    ]
    inside.drive(llm, requests, aborts={"r1": 30})
    llm.reset_prefix_cache()
    inside.generate(llm, prompts, {"max_tokens": 20})
    numbers = {"before": len(before), "served": served.total.proposed}
    accepted = stage.metrics.snapshot().total.accepted
    return {**numbers, "accepted": accepted, "new": signatures.since(llm, before)}
