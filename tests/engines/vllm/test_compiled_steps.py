"""V1's compiled steps: on the real engine they give the drafts and counts of the draft stage that they stand in for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specplug.pipeline.handles import InlineHandle
from specplug.pipeline.stream.buffers import DraftOutputs
from specplug.runtime.stream_steps import StreamSteps
from specplug_vllm.config import plugin_context
from tests.engines.vllm import inside
from tests.engines.vllm.referee import prompts
from tests.engines.vllm.watching import plain_name


@pytest.fixture(scope="module")
def ends(v1):
    """Stop ids, one that ends each answer in its middle."""
    answers = v1.call("inside.generate", prompts=[list(prompt) for prompt in prompts()[:6]])
    return [answer["token_ids"][20] for answer in answers]


CUTTING = {"proposer": "ngram", "policy": "fixed", "options": {"fixed": {"token_budget": 9}}}


@pytest.mark.parametrize("cuts", [False, True], ids=["whole drafts", "cut drafts"])
def test_they_draft_and_count_as_the_stage_does(v1, engine, ends, cuts):
    """The same requests arrive and leave in both runs, each with plug-ins that have learnt nothing."""
    serving = engine("v1", CUTTING, name="cutting") if cuts else v1
    kinds: list[dict[str, Any]] = [
        {},
        {"stop_token_ids": ends[1:2]},
        {"max_tokens": 1},
        {"ignore_eos": True},
        {"extra_args": {"specplug": {"num_speculative_tokens": 1}}},
        {"temperature": 0.8, "seed": 3},
    ]
    requests = [
        {"id": f"r{number}", "prompt": list(prompt), "at": 3 * number, "params": {"max_tokens": 40, **kind}}
        for number, (prompt, kind) in enumerate(zip(prompts()[:6], kinds, strict=True))
    ]
    compiled, plain = [serving.call(drafted, requested=requests, compiled=taken) for taken in (True, False)]
    assert compiled.pop("taken") > 20
    assert plain.pop("taken") == 0
    assert compiled.pop("trimmed") == 0
    assert (plain.pop("trimmed") > 20) == cuts
    assert compiled == plain
    assert sum(len(ids) for step in compiled["drafts"] for ids in step.values()) > 50


# -- inside the engine's process -------------------------------------------------------------------------------------


def drafted(llm: Any, requested: list[dict[str, Any]], compiled: bool) -> dict[str, Any]:
    """Run requests; return every step's drafts by request, and what was counted.

    `taken` is the number of compiled steps, `trimmed` that of the steps whose drafts the stage cut.
    """
    drafter = inside.runner(llm).drafter
    drafting, own = drafter.drafting, (drafter._steps, drafter.drafting._closing)
    stage, propose, runner = drafting.stage, drafter.propose, drafting.stage.runners[0]
    handle = runner.handle
    seed, device = drafting.resolved.settings.seed, drafting.device
    proposer = type(handle.proposer)(plugin_context(llm.llm_engine.vllm_config, seed, device=device, rank=0))
    found: list[dict[str, list[int]]] = []
    taken, trimmed = [], []

    def noting(sampled: Any, *args: Any, **kwargs: Any) -> Any:
        names = list(inside.runner(llm).input_batch.req_ids[: len(sampled)])
        drafts = propose(sampled, *args, **kwargs)
        found.append({plain_name(name): list(ids) for name, ids in zip(names, drafts, strict=True)})
        return drafts

    def counting(*args: Any, **kwargs: Any) -> Any:
        taken.append(1)
        return StreamSteps.launch(drafter._steps, *args, **kwargs)

    def trimming(*args: Any) -> Any:
        trimmed.append(1)
        return type(stage).trimmed(stage, *args)

    runner.handle, stage.has_observers = InlineHandle(handle.spec, proposer, handle.caps), not compiled
    ids = torch.zeros(1, drafting.caps.max_draft_length, dtype=torch.int32)
    drafter._steps = drafting.steps_in_stream(device, (drafter._rows, DraftOutputs(ids)))
    drafter.propose, stage.trimmed = noting, trimming
    if compiled:
        drafter._steps.launch = counting
    before = stage.metrics.snapshot()
    try:
        outputs = inside.drive(llm, requested)["outputs"]
    finally:
        del drafter.propose, stage.trimmed
        if compiled:
            drafting._closing.detach()
        (drafter._steps, drafting._closing), runner.handle, stage.has_observers = own, handle, False
    counts = (stage.metrics.snapshot() - before).as_dict()
    texts = {name: output["token_ids"] for name, output in outputs.items()}
    return {"drafts": found, "counts": counts, "outputs": texts, "taken": len(taken), "trimmed": len(trimmed)}
