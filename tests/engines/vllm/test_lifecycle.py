"""Requests start, are aborted, preempted and resumed: the events and texts of proposers, and the client's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import (
    MAX_TOKENS,
    RUNNERS,
    ZOO,
    assert_greedy,
    baseline,
    fields,
    kind,
    prompts,
    reported,
    truth,
    zoo,
)

__all__ = ["baseline", "kind", "truth", "zoo"]

PROMPTS = [list(prompt) for prompt in prompts()]
FULL = 6  # requests at a time, of which the tight engine's memory holds less
LONG = 72

Records = list[dict[str, Any]]


@pytest.fixture(scope="session")
def tight(kind: str, engine: Callable[..., Engine]) -> Engine:
    """An engine whose KV cache holds 640 tokens."""
    return engine(
        **RUNNERS[kind],
        specplug=ZOO,
        name=f"tight {kind}",
        max_num_seqs=FULL,
        max_model_len=512,
        block_size=32,
        num_gpu_blocks_override=21,
        enable_prefix_caching=False,
    )


def recorded(llm: Any, requests: Records, aborts: dict[str, int] | None = None) -> dict[str, Any]:
    """Do as `watching.watched`, and return under "records" the events that the proposer `recorder` received."""
    from specplug_testkit.recorder import RECORDS

    RECORDS.clear()
    found = watching.watched(llm, requests, aborts)
    return {**found, "records": list(RECORDS)}


def assert_sound(records: Records) -> None:
    """Every row is the newest tenant of its slot, and every token is handed out once per generation."""
    occupants: dict[int, tuple[str, int]] = {}
    taken: dict[tuple[int, int], int] = {}
    newest: dict[int, int] = {}
    begun: set[str] = set()
    reset: list[tuple[int, int]] = []
    for record in records:
        if record["call"] == "event" and "slot" in record:
            slot, generation, name = record["slot"], record["generation"], record["request_id"]
            if record["kind"] in ("STARTED", "RESUMED", "UPDATED"):
                assert slot not in occupants or record["kind"] == "UPDATED", (
                    f"slot {slot} is taken by {occupants[slot]}"
                )
                assert generation > newest.get(slot, 0), "generations grow"
                occupants[slot], newest[slot] = (name, generation), generation
                begun.add(name)
            elif name in begun:  # others began before the recording
                assert occupants.pop(slot) == (name, generation), f"{name} has left a place that was not its own"
        if record["call"] == "ingest" and not record["is_dummy"]:
            rows = zip(
                record["request_ids"],
                record["slots"],
                record["generations"],
                record["lengths"],
                record["num_new"],
                strict=True,
            )
            for name, slot, generation, length, new in rows:
                assert occupants[slot] == (name, generation)
                assert taken.get((slot, generation), 0) + new == length, f"{name} missed tokens or got some twice"
                taken[slot, generation] = length
            reset += [(slot, newest[slot]) for slot in record["reset_slots"]]
    assert len(set(reset)) == len(reset), "a slot was reset twice in one generation"
    assert set(reset) >= set(taken), "a slot was not reset"


def requests_of(count: int) -> Records:
    params = {"max_tokens": MAX_TOKENS}
    return [{"id": f"q{i}", "prompt": PROMPTS[i], "at": i // 3, "params": params} for i in range(count)]


def kinds_of(events: list[Any], name: str) -> list[str]:
    return [kind for kind, owner, _, _ in events if owner == name]


def test_aborted_and_finished(zoo, truth):
    """A running, a waiting and a not yet prefilled request leave; the others go on in slots that change hands."""
    # Names of their own: at the first step proposers still receive the ends of the previous test's requests.
    requested = [{**request, "id": f"left {index}"} for index, request in enumerate(requests_of(14))]
    found = zoo.call(recorded, requests=requested, aborts={"left 1": 3, "left 12": 4, "left 5": 4})
    rest = [index for index in range(14) if f"left {index}" in found["outputs"]]
    assert len(rest) == 11
    outputs = [found["outputs"][f"left {index}"] for index in rest]
    assert_greedy([PROMPTS[index] for index in rest], [truth[index] for index in rest], outputs)
    assert found["wrong"] == []
    assert_sound(found["records"])
    assert kinds_of(found["events"], "left 1") == ["started", "aborted"]
    assert kinds_of(found["events"], "left 12") == [], "it never ran"
    last = found["events"][-1][1]
    for index in rest[:-1]:
        assert kinds_of(found["events"], f"left {index}") in (["started", "finished"], ["started"])
    started = [event for event in found["events"] if event[0] == "started"]
    assert len({slot for _, _, slot, _ in started}) <= 8 < len(started), f"slots were not reused, until {last}"


def test_preempted_and_resumed(kind, tight, baseline):
    """With memory for only some requests, preempted ones resume, get drafts again, and have the same answers."""
    truth = baseline.call("inside.generate", prompts=PROMPTS[:FULL], params={"max_tokens": LONG, "ignore_eos": True})
    params = [{"max_tokens": LONG, "ignore_eos": True, **reported(answer["token_ids"])} for answer in truth]
    requested = [{**request, "params": own} for request, own in zip(requests_of(FULL), params, strict=True)]
    found = tight.call(recorded, requests=requested)
    assert found["preemptions"] > 0
    assert_greedy(PROMPTS[:FULL], truth, [found["outputs"][f"q{index}"] for index in range(FULL)])
    assert found["wrong"] == []
    assert_sound(found["records"])
    moved = [f"q{index}" for index in range(FULL) if "preempted" in kinds_of(found["events"], f"q{index}")]
    assert moved
    for name in moved:
        kinds = kinds_of(found["events"], name)
        assert kinds[:3] == ["started", "preempted", "resumed"]
        generation = max(row["generation"] for row in found["rows"][name])
        later = [row for row in found["rows"][name] if row["generation"] == generation]
        assert sum(row["accepted"] for row in later) > 0, f"{name} was not drafted for after it resumed"


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
    assert_sound(found["records"])
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
