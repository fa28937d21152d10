"""What is of vLLM alone in the life of requests: mixtures of all sorts, those that cannot draft, and its warm-up's.

See `tests.engines.suites.lifecycle` for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.suites.lifecycle import assert_sound
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import MAX_TOKENS, fields, prompts, reported

PROMPTS = [list(prompt) for prompt in prompts()]

Records = list[dict[str, Any]]


def recorded(llm: Any, requests: Records, aborts: dict[str, int] | None = None) -> dict[str, Any]:
    """Do as `watching.watched`, and return under "records" the events that the proposer `recorder` received."""
    from specplug_testkit.recorder import RECORDS

    RECORDS.clear()
    found = watching.watched(llm, requests, aborts)
    return {**found, "records": list(RECORDS)}


MIXTURE: list[Callable[[int, list[int]], dict[str, Any]]] = [
    lambda seed, answer: {},
    lambda seed, answer: {"temperature": 0.8, "seed": seed},
    lambda seed, answer: fields(enabled=False),
    lambda seed, answer: {"temperature": 1.0, "top_p": 0.9, **fields(num_speculative_tokens=seed % 9)},
    lambda seed, answer: reported(answer),
    lambda seed, answer: {"temperature": 1.0, "top_k": 5, **fields(proposer="bigram")},
    lambda seed, answer: {"logprobs": 1, **fields(proposer="recorder", tenant="someone")},
    lambda seed, answer: {"repetition_penalty": 1.2, "temperature": 0.5},
    lambda seed, answer: fields(num_speculative_tokens=seed % 9),
    lambda seed, answer: {"max_tokens": 1 + seed % 5},
]
GREEDY = (0, 2, 4, 6, 8, 9)  # of those


def test_many_requests_of_all_sorts(kind, zoo, truth):
    """100 of them on V1, 30 through Triton's interpreter; four of them aborted."""
    count = 100 if kind == "v1" else 30
    requested = []
    for index in range(count):
        place = (index * 7) % len(PROMPTS)
        own = MIXTURE[index % len(MIXTURE)](index, truth[place]["token_ids"])
        params = {"max_tokens": MAX_TOKENS, **own}
        requested.append({"id": f"q{index}", "prompt": PROMPTS[place], "at": index // 4, "params": params})
    leaving = {f"q{index}": index // 4 + 3 for index in (3, 11, 17, 21)}
    found = zoo.call(recorded, requests=requested, aborts=leaving)
    assert_sound({**found, "left": {}, "counts": {"faults": {}}})
    assert not found["faults"]
    assert len(found["outputs"]) >= count - len(leaving)
    greedy = [index for index in range(count) if index % len(MIXTURE) in GREEDY and f"q{index}" in found["outputs"]]
    places = [(index * 7) % len(PROMPTS) for index in greedy]
    for index, place in zip(greedy, places, strict=True):
        answer, limit = found["outputs"][f"q{index}"], requested[index]["params"]["max_tokens"]
        assert answer["token_ids"] == truth[place]["token_ids"][:limit]
    off = [row for index in range(2, count, len(MIXTURE)) for row in found["rows"].get(f"q{index}", ())]
    assert off
    assert not any(row["proposed"] for row in off)
    assert zoo.call(left_over) <= 1, "a finished request is forgotten by the step behind it"


def left_over(llm: Any) -> int:
    """Run one more request, and return how many requests the worker still holds."""
    watching.generate(llm, [PROMPTS[3]], {"max_tokens": 2})
    drafting = watching.drafting(llm)
    assert len(drafting.slots.occupants) == len(drafting.allocator)
    assert not drafting.allocator._waiting
    return len(drafting.allocator)


# -- requests that cannot draft --------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_requests_of_one_token_are_not_taken_in(runner, v1, v2, baseline_v1, baseline_v2):
    requested = [
        {"id": "long", "prompt": PROMPTS[0], "at": 0, "params": {"max_tokens": 12, "ignore_eos": True}},
        {"id": "short", "prompt": PROMPTS[1], "at": 3, "params": {"max_tokens": 1}},
        {"id": "later", "prompt": PROMPTS[2], "at": 3, "params": {"max_tokens": 6, "ignore_eos": True}},
        {"id": "alone", "prompt": PROMPTS[3], "at": 40, "params": {"max_tokens": 1}},
    ]
    found = {"v1": v1, "v2": v2}[runner].call(watching.watched, requests=requested)
    truth = {"v1": baseline_v1, "v2": baseline_v2}[runner].call("inside.drive", requests=requested)
    for name, output in truth["outputs"].items():
        assert found["outputs"][name]["token_ids"] == output["token_ids"], name
    assert set(found["rows"]) == {"long", "later"} == {name for kind, name, *_ in found["events"] if kind == "started"}
    assert sum(row["proposed"] for row in found["rows"]["long"]) > 0
    assert (found["wrong"], found["faults"]) == ([], {})


# -- the engine's own requests ---------------------------------------------------------------------------------------


def test_the_requests_of_the_engines_warm_up_are_nobodys(v2):
    found = v2.call(warmed_up)
    assert found["steps"] >= 6  # a prefill and decoding steps, and one that ends the requests
    assert (found["events"], found["rows"]) == ([], {})
    assert {count for count in found["total"].values() if isinstance(count, int)} == {0}
    assert found["faults"] == {}


def warmed_up(llm: Any) -> dict[str, Any]:
    """Run the warm-up of V2's kernels as vLLM's GPU worker does, and return what specplug noticed of it."""
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    runner, driver = inside.runner(llm), inside.core(llm).model_executor.driver_worker
    worker = getattr(driver, "worker", driver)
    drafting = watching.drafting(llm)
    before, most, steps = drafting.stage.metrics.snapshot(), runner.scheduler_config.max_num_seqs, []

    def execute_model(scheduler_output: Any) -> Any:
        steps.append(scheduler_output)
        return worker.execute_model(scheduler_output)

    runner.scheduler_config.max_num_seqs = 2  # in Triton's interpreter
    try:
        with watching.Watch(llm) as watch:
            warmup_kernels(runner, execute_model, worker.sample_tokens)
    finally:
        runner.scheduler_config.max_num_seqs = most
        llm.reset_prefix_cache()  # it writes over blocks that it does not ask the scheduler for
    counts = (drafting.stage.metrics.snapshot() - before).as_dict()
    return {"steps": len(steps), "events": watch.events, "rows": watch.rows, **counts}
