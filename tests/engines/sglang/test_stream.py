"""An engine's start compiles all that serving runs, and tries the stream out; a stream that fails costs drafts only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import signatures
from tests.engines.plain import prompts
from tests.engines.refusing import Refusing, refused_at_start
from tests.engines.sglang import inside, watching
from tests.engines.sglang.engines import Engine

CONFIG = '{"proposer": "ngram", "policy": "fixed", "options": {"fixed": {"token_budget": 9}}}'
TREES = pytest.param(3, marks=pytest.mark.slow)


def cold(engine: Callable[..., Engine], topk: int = 1) -> Engine:
    """Return an engine that has compiled only what its own start has."""
    environment = {signatures.COLD: "1", "SPECPLUG_CONFIG": CONFIG}
    return engine("SPECPLUG", topk=topk, environment=environment, sampling=True, name="cold")


@pytest.mark.parametrize("topk", [1, TREES], ids=["chains", "trees"])
def test_serving_compiles_nothing(topk, engine):
    ours = cold(engine, topk)
    before = ours.inside(signatures.seen)
    assert not ours.inside(proposed), "the engine is new"
    found = ours.call(counted, call="serve_many_kinds", prompts=[list(prompt) for prompt in prompts()[:6]])
    assert len(before) > 10
    assert found["total"]["accepted"] > 0
    assert ours.inside(signatures.since, before=before) == []


@pytest.mark.parametrize("every", [1, 5])
def test_a_stream_that_refuses_steps_costs_drafts(every, engine):
    streamed = cold(engine)
    given = {"prompts": [list(prompt) for prompt in prompts()[:4]], "params": {"max_new_tokens": 60}}
    expected = streamed.call(inside.generate, **given)
    streamed.inside(refuse, every=every)
    found = streamed.call(counted, **given)
    streamed.inside(refuse, every=0)
    assert [answer["token_ids"] for answer in found["answers"]] == [answer["token_ids"] for answer in expected]
    assert list(found["faults"]) == ["stream"]
    assert found["faults"]["stream"]["raised"] > 1
    assert ("switched off" in found["faults"]["stream"]) == (every == 1)
    assert (found["total"]["accepted"] > 0) == (every > 1)


def test_a_stream_that_does_not_start_is_done_without(engine):
    assert cold(engine).inside(started_without) == {"drafts": "StageDrafts", "warned": 1}


# -- inside the engine's process -------------------------------------------------------------------------------------


def counted(engine: Any, call: str = "generate", **given: Any) -> dict[str, Any]:
    """Return "answers", and what was counted meanwhile."""
    watching.call(engine, watching.begin)
    answers = {"generate": inside.generate, "serve_many_kinds": serve_many_kinds}[call](engine, **given)
    watching.settled(engine)
    return {"answers": answers, **watching.call(engine, watching.end)["counts"]}


def serve_many_kinds(engine: Any, prompts: list[list[int]]) -> None:
    """Serve requests of many kinds."""
    given: list[dict[str, Any]] = [
        {},
        {"max_new_tokens": 500, "ignore_eos": True},  # with a prompt, more tokens than a new text has trees for
        {"temperature": 0.8, "sampling_seed": 3},
        {"temperature": 0.8},
        {"custom_params": {"specplug": {"references": [{"token_ids": prompts[0]}], "num_speculative_tokens": 2}}},
        {"stop_token_ids": [7], "max_new_tokens": 1},
    ]
    requests = [
        {"id": f"r{number}", "prompt": prompt, "params": {"max_new_tokens": 40, **own}}
        for number, (prompt, own) in enumerate(zip(prompts, given, strict=True))
    ]
    watching.drive(engine, requests, aborts={"r1": ["r1", 300]})
    inside.flush(engine)
    inside.generate(engine, prompts, {"max_new_tokens": 20})


# -- in the scheduler ------------------------------------------------------------------------------------------------


def proposed(scheduler: Any) -> int:
    return scheduler.draft_worker.drafting.counts.read().total.proposed


def refuse(scheduler: Any, every: int) -> None:
    """Let the stream refuse every n-th launch; 0 ends that."""
    steps = scheduler.draft_worker.drafting.drafts._steps
    if every:
        steps._accepts, steps._stream = steps._stream, Refusing(every)
    else:
        steps._stream = steps._accepts


def started_without(scheduler: Any) -> dict[str, Any]:
    """Build what drafts once more, with a stream that refuses its first step."""
    from specplug.interfaces import PluginContext
    from specplug_sglang.scheduler.stream_drafts import build

    own = scheduler.draft_worker.drafting
    given = {"vocab_size": own.vocab_size, "max_slots": len(own.table.tokens), "max_length": own.max_length}
    context = PluginContext(own.caps, device=own.device, **given)
    with refused_at_start() as warned:
        drafts, _ = build(own.resolved.settings, context, own.table, None, lambda event: None)
    drafts.close()
    return {"drafts": type(drafts).__name__, "warned": len(warned)}
