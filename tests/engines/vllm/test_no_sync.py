"""V2's speculator neither reads back from the device nor copies to it at steps that bring no new request.

Shown inside an engine's process, under a watch on every operation; `tests/steps/test_no_sync.py` has the stage.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils._python_dispatch import _disable_current_modes

from specplug.steps.device_steps import DeviceSteps
from specplug.steps.repeated_launches import Repeated
from specplug_vllm.worker.stage_steps import StageSteps
from tests.engines.launches import most
from tests.engines.plain import MAX_TOKENS, assert_greedy, prompts
from tests.engines.vllm import inside, watching
from tests.steps.test_no_sync import Watch
from tests.steps.tools import work_on_tensors

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


def test_a_step_of_lookup_is_two_launches_beside_its_own(engine):
    """Its own are in `tests.engines.kernels.test_launches`, as it is compiled code here."""
    v2 = engine("v2", specplug={"proposer": "ngram"}, draft_length=4, asynchronous=True, name="lookup")
    found = v2.call(steady_steps, requested=GIVEN)
    assert found["steps"] > 5
    assert found["launched"] == ["begin", "finish"] * found["steps"]
    assert found["launches"] == found["own"]
    assert found["found"] == []
    assert found["proposed"] > 10


def test_an_unchanged_batch_makes_its_launches_again(engine, truth):
    """Requests end in different steps, so that batches change, and more wait than run."""
    v2 = engine("v2", specplug={"proposer": "launched"}, draft_length=4, asynchronous=True, name="launched")
    found = v2.call(repeated, requested=[list(prompt) for prompt in prompts()])
    assert_greedy([list(prompt) for prompt in prompts()], truth, found["answers"])
    assert found["repeated"] > 15
    assert found["whole"] > 5
    assert found["accepted"] > 20


# -- inside the engine's process -------------------------------------------------------------------------------------


def repeated(llm: Any, requested: list[list[int]]) -> dict[str, Any]:
    """Generate, and count the steps that were taken whole and those whose launches were made again."""
    steps = watching.drafter(llm).steps
    metrics = watching.drafter(llm).drafting.stage.metrics
    counts = {"repeated": 0, "whole": 0}
    take = steps._take
    launch = Repeated.launch
    before = metrics.snapshot()

    def whole(*args: Any) -> Any:
        counts["whole"] += 1
        return take(*args)

    def again(*args: Any) -> None:
        counts["repeated"] += 1
        launch(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "_take", whole)
        patch.setattr(Repeated, "launch", again)
        answers = inside.generate(llm, requested, {"max_tokens": MAX_TOKENS})
    return {**counts, "answers": answers, "accepted": (metrics.snapshot() - before).total.accepted}


def steady_steps(llm: Any, requested: list[list[int]], by_stage: bool = False, tokens: int = TOKENS) -> dict[str, Any]:
    """Generate, and watch the drafting of steps whose requests are those of the step before.

    Kernels are noted, not watched.  "own" is the number of launches of the proposer
    itself.
    """
    speculator = watching.drafter(llm)
    propose = speculator.propose
    stage = speculator.drafting.stage
    by_kernels = speculator.steps
    handle = stage.runners[0].handle
    metrics = stage.metrics
    step_of_proposer = getattr(handle, "step", None)
    names: list[str] = []
    watch = Watch()
    own = Watch()
    steps = 0
    launched = []
    before = metrics.snapshot()

    def noted(name: str, work_of: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                work = work_of(*args, **kwargs)

            def launch() -> None:
                launched.append(name)
                with _disable_current_modes():
                    work.launch()

            return SimpleNamespace(launch=launch)

        return call

    def watched(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal names, steps
        steady = input_batch.req_ids == names
        names = list(input_batch.req_ids)
        if not steady:
            launched_before = len(launched)
            own_before = own.launches
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
        patch.setattr(handle, "step", proposing)
        work_on_tensors(patch)
        patch.setattr(stage.in_flight, "_heads", stage.in_flight.heads)
        for runner in stage.runners:
            patch.setattr(runner, "_arrays", (runner.ingested, runner.generations))
        if by_stage:
            patch.setattr(speculator, "steps", StageSteps(speculator.drafting))
        elif isinstance(by_kernels, DeviceSteps):
            noting = {name: noted(name, work_of) for name, work_of in by_kernels._launches._asdict().items()}
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
