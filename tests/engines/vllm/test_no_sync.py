"""V2's speculator neither reads back from the device nor copies to it at steps that bring no new request.

Shown inside an engine's process, under a watch on every operation; `tests/pipeline/test_no_sync.py` has the stage.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils._python_dispatch import _disable_current_modes

from tests.engines.launches import most
from tests.engines.plain import prompts
from tests.engines.vllm import inside, watching
from tests.pipeline.test_no_sync import Watch

TOKENS = 24
ADAPTIVE = {
    "method": "custom_class",
    "model": "specplug_vllm.Proposer",
    "num_speculative_tokens": 4,
    "enable_adaptive_verification": True,
}
SETUPS: dict[str, dict[str, Any]] = {
    "ids": {"specplug": {"proposer": "bigram"}, "draft_length": 4},
    "several, with logits": {"specplug": {"proposer": "bigram", "extra_proposers": ["uniform"]}, "draft_length": 4},
    "cut": {
        "specplug": {"proposer": "bigram", "policy": "fixed", "options": {"fixed": {"token_budget": 3}}},
        "speculative_config": ADAPTIVE,
    },
}


GIVEN = [list(prompt) for prompt in prompts()[:3]]


def launched(engine: Any, name: str) -> Any:
    return engine("v2", **SETUPS[name], asynchronous=True, name="no-sync")


@pytest.mark.parametrize("name", SETUPS)
def test_no_step_reads_back_or_copies_in(engine, name):
    """Neither do steps of the draft stage, nor those of the kernels that can take its place, which are two launches."""
    for by_stage in (True, False):
        found = launched(engine, name).call(steady_steps, requested=GIVEN, by_stage=by_stage)
        assert found["steps"] > 5
        assert found["found"] == []
        assert found["operations"] > (100 if by_stage else 10) * found["steps"]
        assert found["proposed"] > 10  # it did draft
    if name == "ids":
        assert found["launched"] == ["begin", "finish"] * found["steps"]
        assert most("V2", "on the device") == 2
        assert found["launches"] == found["own"] > 0


def test_a_step_that_drafts_nothing_launches_nothing(engine):
    """Its tokens are counted on the host, and the next step that drafts brings them to the proposers."""
    v2 = launched(engine, "ids")
    v2.call(switch, mode="off")
    try:
        found = v2.call(steady_steps, requested=GIVEN)
    finally:
        v2.call(switch, mode="on")
    assert found["steps"] > 10
    assert (found["launches"], found["proposed"]) == (most("V2", "neither"), 0)
    assert found["emitted"] == found["rows"] == 3 * TOKENS
    assert v2.call(steady_steps, requested=GIVEN)["proposed"] > 10


def test_a_step_of_a_proposer_on_the_host_is_three_launches(engine):
    """These are pack, the host function and unpack; nothing else would run on the device, and nothing waits for it."""
    v2 = engine("v2", specplug={"proposer": "ngram"}, draft_length=4, asynchronous=True, name="host-step")
    found = v2.call(steady_steps, requested=GIVEN)
    assert found["steps"] > 5
    assert found["launched"] == ["pack", "host function", "unpack"] * found["steps"]
    assert most("V2", "`ngram`") == 3
    assert (found["found"], found["launches"]) == ([], 0)
    assert found["proposed"] > 10


# -- inside the engine's process -------------------------------------------------------------------------------------


def steady_steps(llm: Any, requested: list[list[int]], by_stage: bool = False, tokens: int = TOKENS) -> dict[str, Any]:
    """Generate, and watch the drafting of steps whose requests are those of the step before.

    Kernels, and what is launched in a stream, are noted, not watched.  "own" is the number of launches of the proposer
    itself.
    """
    speculator = watching.drafter(llm)
    propose, stage, by_kernels = speculator.propose, speculator.drafting.stage, speculator._on_device.steps
    handle, metrics, in_stream = stage.runners[0].handle, stage.metrics, speculator._steps
    step_of_proposer = getattr(handle, "step", None)
    names: list[str] = []
    watch, own, steps, launched = Watch(), Watch(), 0, []
    before = metrics.snapshot()

    def noted(name: str, launch: Any) -> Any:
        def call(*args: Any) -> None:
            launched.append(name)
            with _disable_current_modes():
                launch(*args)

        return call

    def watched(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal names, steps
        steady, names = input_batch.req_ids == names, list(input_batch.req_ids)
        if not steady:
            launched_before, own_before = len(launched), own.launches
            out = propose(input_batch, *args, **kwargs)
            del launched[launched_before:]
            own.launches = own_before
            return out
        steps += 1
        with watch:
            return propose(input_batch, *args, **kwargs)

    def proposing(*args: Any) -> None:
        with own:
            step_of_proposer(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculator, "propose", watched)
        if in_stream is not None:
            transfers, stream = in_stream._transfers, in_stream._stream
            noting = {name: noted(name, getattr(transfers, name)) for name in ("pack", "unpack")}
            patch.setattr(in_stream, "_transfers", SimpleNamespace(**noting))
            launch = noted("host function", stream.launch)
            patch.setattr(in_stream, "_stream", SimpleNamespace(launch=launch, mark=stream.mark))
        elif by_stage:
            patch.setattr(handle, "step", proposing)
            patch.setattr(speculator._on_device, "steps", None)
        else:
            patch.setattr(handle, "step", proposing)
            if by_kernels is not None:
                noting = {name: noted(name, launch) for name, launch in by_kernels._launches._asdict().items()}
                patch.setattr(by_kernels, "_launches", SimpleNamespace(**noting))
        inside.generate(llm, requested, {"max_tokens": tokens, "ignore_eos": True})
    counts = (metrics.snapshot() - before).total
    return {
        "steps": steps,
        "launched": launched,
        "own": own.launches,
        "found": watch.found,
        "operations": watch.count,
        "launches": watch.launches,
        "proposed": counts.proposed,
        "rows": counts.target_steps,
        "emitted": counts.emitted,
    }


def switch(llm: Any, mode: str) -> None:
    """Switch drafting off or on, as operators do."""
    inside.scheduler(llm).step_planner.control.set(mode=mode)
