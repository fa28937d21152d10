"""A step of decoding neither reads back from the device nor copies to it, as long as no request starts or ends.

Shown of steps without drafts under a watch on every operation before the target's forward; and of a proposer on the
device with tensors on the meta device, which have no values to read.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from specplug.settings.sources import CONFIG_VARIABLE
from specplug.steps.device_steps import Launches
from tests.engines.launches import most
from tests.engines.sglang import trees
from tests.steps.test_no_sync import Watch

META = torch.device("meta")

SETTINGS = {
    "proposer": "bigram",
    "policy": "fixed",
    "faults": {"host_deadline_ms": None},
    "options": {"fixed": {"token_budget": 6}},
}


@pytest.fixture
def watched(engine):
    return engine("SPECPLUG", name="specplug")


def test_a_step_without_drafts_is_few_launches(watched):
    """Everything before the target's forward counts, SGLang's preparation of the batch as well."""
    prompts = [[5, 6, 7, 8] * 6 + [9], [11, 12, 13] * 8]
    with watched.planted(watch_steps, trees.skip_drafts):
        watched.call("inside.generate", prompts=prompts, params={"max_new_tokens": 40, "ignore_eos": True})
    steps = watched.inside(watched_steps)
    assert len(steps) > 3
    for step in steps:
        assert step["found"] == [], step
        assert 0 < step["operations"] <= most("SGLang", "without drafts"), step


def test_a_step_of_a_proposer_on_the_device_is_two_launches_and_its_own(watched):
    found = watched.inside(between_kernels)
    assert found["launched"] == ["begin", "finish"] * 3
    assert found["launches"] == found["own"] > 0
    assert found["found"] == []
    assert len(found["launched"]) / 3 <= most("SGLang", "on the device")


# -- inside the scheduler's process ----------------------------------------------------------------------------------


def between_kernels(scheduler: Any) -> dict[str, Any]:
    """Draft and observe for three requests on the meta device, between kernels that are only noted.

    The first step copies what steps that draft need.  "own" is the number of launches of the proposer itself.
    """
    from specplug_sglang.scheduler import drafting as module
    from specplug_sglang.scheduler.batches import Decoding
    from specplug_sglang.scheduler.drafting import Drafting

    launched: list[str] = []

    def noting(name: str) -> Any:
        return lambda *_, **__: SimpleNamespace(launch=lambda: launched.append(name))

    kernels = Launches(*map(noting, Launches._fields))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CONFIG_VARIABLE, json.dumps(SETTINGS))
        patch.setattr(module, "launches_for", lambda device: kernels)
        runner = SimpleNamespace(device="meta", model_config=scheduler.model_config)
        ranks = SimpleNamespace(rank=0, is_alone=True)
        drafting = Drafting(scheduler.server_args, SimpleNamespace(model_runner=runner), ranks)  # type: ignore[arg-type]
    reqs = [request(name, slot) for slot, name in enumerate("abc", start=1)]
    drafting.admit(reqs)
    slots, before, counts = empty(3, dtype=torch.int64), empty(3, dtype=torch.int64), empty(3)
    assert drafting.stage is not None
    handle = drafting.stage.runners[0].handle
    step_of_proposer, watch, own = handle.step, Watch(), Watch()

    def proposing(*args: Any) -> None:
        with own:
            step_of_proposer(*args)

    def step() -> None:
        batch = Decoding(reqs, drafting.rows, slots, before, False)
        draft = drafting.drafts.propose(batch, 2, drafting.step_planner.plan)
        assert draft is not None
        assert draft.token_ids.shape == (3, 2)
        drafting.drafts.observe(batch, draft, counts)

    drafting.plan(reqs)
    step()
    launched.clear()
    handle.step = proposing  # type: ignore[method-assign]
    for _ in range(3):
        drafting.plan(reqs)
        with watch:
            step()
    return {"launched": launched, "launches": watch.launches, "own": own.launches, "found": watch.found}


def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, device=META)


class Standing(SimpleNamespace):
    """Stands in for an object whose other attributes are None."""

    def __getattr__(self, name: str) -> None:
        return None


def request(rid: str, slot: int) -> Any:
    """Stand in for a `Req` that decodes."""
    params = {
        "max_new_tokens": 20, "min_new_tokens": 0, "top_k": 1, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0,
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "stop_token_ids": {5, 7},
    }  # fmt: skip
    return Standing(
        rid=rid,
        sampling_params=Standing(**params),
        origin_input_ids=[1, 2, 3],
        origin_input_ids_unpadded=[1, 2, 3],
        output_ids=[4],
        eos_token_ids={1},
        retraction_count=0,
        kv=SimpleNamespace(req_pool_idx=slot),
        finished=lambda: False,
    )


STEPS: list[dict[str, Any]] = []


def watch_steps(scheduler: Any) -> None:
    """Note, for each planned step without drafts whose requests are those before, what runs before the forward."""
    worker = scheduler.draft_worker
    decode, forward, last = worker._decode, worker.target_worker.forward_batch_generation, [()]
    draft, planned = worker._draft, [0]
    STEPS.clear()

    def drafting(step: Any, draft_length: int) -> Any:
        planned[0] = draft_length
        return draft(step, draft_length)

    def decoding(batch: Any, on_publish: Any) -> Any:
        names = tuple(req.rid for req in batch.reqs)
        steady, last[0] = names == last[0], names
        watch = Watch()

        def forwarding(*args: Any, **kwargs: Any) -> Any:
            if steady and not planned[0]:
                STEPS.append({"operations": watch.launches, "found": list(watch.found)})
            with _disable_current_modes():
                return forward(*args, **kwargs)

        worker.target_worker.forward_batch_generation = forwarding
        try:
            with watch:
                return decode(batch, on_publish)
        finally:
            worker.target_worker.forward_batch_generation = forward

    trees.put(worker, "_decode", decoding)
    trees.put(worker, "_draft", drafting)


def watched_steps(scheduler: Any) -> list[dict[str, Any]]:
    return list(STEPS)
