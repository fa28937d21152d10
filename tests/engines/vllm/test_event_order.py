"""Requests begin and end between the steps of the lookup on V2, on one thread: the stream has their order.

vLLM frees a request's slot a step after its end is known, gives it to another request at once, and runs a step ahead.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from specplug.steps.device_steps import DeviceSteps
from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.vllm import inside, watching
from tests.engines.vllm.conftest import NGRAM
from tests.engines.vllm.fields import CHUNK

PROMPTS = [list(prompt) for prompt in prompts()[:8]]
TIGHT = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": CHUNK,
    "max_model_len": 512,
    "block_size": 32,
    "num_gpu_blocks_override": 21,
    "enable_prefix_caching": False,
}
TOKENS = 150


def test_no_step_has_a_row_whose_request_has_ended_or_not_begun(engine):
    v2 = engine("v2", NGRAM, draft_length=4, asynchronous=True, name="tight", **TIGHT)
    found = v2.call(noted, requested=PROMPTS, aborted=[1, 4])
    whole = [number for number in range(len(PROMPTS)) if str(number) in found["outputs"]]
    assert whole == [0, 2, 3, 5, 6, 7]
    answers = [found["outputs"][str(number)] for number in whole]
    assert_greedy([PROMPTS[n] for n in whole], [greedy(tuple(PROMPTS[n]), TOKENS) for n in whole], answers)
    kinds = [call[0] for call in found["calls"]]
    assert {"started", "finished", "aborted", "preempted", "resumed", "step"} <= {*kinds}
    assert found["threads"] == 1
    held: dict[int, int] = {}
    reused = 0
    for kind, rows in found["calls"]:
        for slot, generation in rows:
            if kind == "step":
                assert held[slot] == generation
            elif kind in ("started", "resumed"):
                assert slot not in held
                held[slot] = generation
                reused = reused + (generation > 1)
            else:
                assert held.pop(slot) == generation
    assert (held, reused > 4) == ({}, True)
    assert found["accepted"] > 50


def noted(llm: Any, requested: list[list[int]], aborted: list[int]) -> dict[str, Any]:
    """Answer requests, some of which end early; return the "outputs" of the others, and the lookup's "calls".

    A call is the kind of an event, or "step", with its slots and their generations.
    """
    stage = watching.drafting(llm).stage
    proposer = stage.runners[0].handle.proposer
    runner = inside.runner(llm)
    on_event = proposer.on_event
    step = proposer.step
    calls: list[tuple[str, list[tuple[int, int]]]] = []
    threads: set[int] = set()

    def event(found: Any) -> None:
        threads.add(threading.get_ident())
        if hasattr(found, "slot"):
            calls.append((str(found.kind.value), [(found.slot, found.generation)]))
        on_event(found)

    def stepping(batch: Any, *args: Any) -> None:
        threads.add(threading.get_ident())
        calls.append(("step", list(zip(batch.slots.tolist(), batch.generations.tolist(), strict=True))))
        step(batch, *args)

    before = watching.counts(llm)["total"]["accepted"]
    outputs = {}
    steps = 0
    assert isinstance(runner.speculator.steps, DeviceSteps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposer, "on_event", event)
        patch.setattr(proposer, "step", stepping)
        for number, prompt in enumerate(requested):
            params = inside.sampling({"max_tokens": TOKENS})
            llm.llm_engine.add_request(str(number), inside.prompt_of(prompt), params)
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                name = output.request_id
                if output.finished:
                    outputs[name] = inside.described(output.outputs[0])
                elif int(name) in aborted and len(output.outputs[0].token_ids) > 20:
                    llm.llm_engine.abort_request([name])
            steps += 1
            assert steps < 4000
        inside.generate(llm, [[5, 6, 7]], {"max_tokens": 1})  # brings the last ends
    kept = {name: answer for name, answer in outputs.items() if int(name) not in aborted}
    accepted = watching.counts(llm)["total"]["accepted"] - before
    return {"outputs": kept, "calls": calls, "threads": len(threads), "accepted": accepted}
