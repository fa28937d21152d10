"""Details of vLLM that silently spoil drafts or counts when they are overlooked; one test each."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.engines.plain import MAX_TOKENS, assert_greedy, ids, prompts
from tests.engines.suites.lifecycle import kinds_of
from tests.engines.suites.served import drafts_of
from tests.engines.vllm import inside, served, watching

PROMPTS = [list(prompt) for prompt in prompts()]
on_v2 = pytest.mark.parametrize("kind", ["v2", "v2_async"], indirect=True)


def spoiled(llm: Any, requests: list[dict[str, Any]], *, mapping: bool) -> dict[str, Any]:
    """Run requests under changing draft lengths, and overwrite what vLLM was given or gave, one step later.

    vLLM writes into the drafts that it was given when the draft length is lowered, and makes a new row mapping at every
    step, so code that keeps either reads other values one step later.
    """
    speculator = inside.runner(llm).speculator
    control = inside.scheduler(llm).step_planner.control
    propose = speculator.propose
    kept = []
    written = []
    draft_lengths = (8, 3, 0, 5)

    def spoiling(input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in kept:
            written.append(bool((tensor == -1).any()))
            tensor.fill_(-1 if tensor.ndim == 2 else 0)
        kept.clear()
        control.set(num_speculative_tokens=draft_lengths[len(written) % len(draft_lengths)])
        drafts = propose(input_batch, *args, **kwargs)
        kept.extend([drafts, input_batch.idx_mapping] if mapping else [drafts])
        return drafts

    speculator.propose = spoiling
    try:
        found = served.recorded(llm, requests)
    finally:
        del speculator.propose
        control.set(num_speculative_tokens=None)
    return {**found, "written": sum(written)}


@on_v2
def test_drafts_and_row_mappings_are_not_kept(kind, zoo, truth):
    requested = [
        {
            "id": f"q{i}",
            "prompt": PROMPTS[i],
            "at": i,
            "params": {"max_tokens": MAX_TOKENS, **drafts_of(answer["token_ids"])},
        }
        for i, answer in enumerate(truth[:10])
    ]
    found = zoo.call(spoiled, requests=requested, mapping=kind == "v2")
    assert found["written"] > 3, "vLLM did not write into the drafts, so nothing was tried"
    assert_greedy(PROMPTS[:10], truth[:10], [found["outputs"][f"q{i}"] for i in range(10)])
    assert found["wrong"] == []
    total = found["counts"]["total"]
    assert total["accepted"] == total["verified"] > 50, "the oracle is always right"


@on_v2
def test_accepted_padding_is_nobodys_draft(zoo):
    """vLLM verifies K tokens per row; in a text that repeats one token it accepts the padding after short drafts."""
    repeating = ids("-" * 96)
    params = {"max_tokens": 32, "ignore_eos": True, **drafts_of([])}
    found = zoo.call("served.counted", prompts=[repeating, *PROMPTS[:2]], params=[params] * 3)
    assert found["accepted_by_vllm"] > 0, "no filler was accepted, so nothing was tried"
    assert found["total"]["proposed"] == found["total"]["verified"] == found["total"]["accepted"] == 0


def interrupted(llm: Any, requests: list[dict[str, Any]], at: list[int]) -> dict[str, Any]:
    """Run requests, and before some steps take all of them off, with whatever of theirs is under way."""
    engine = llm.llm_engine
    step = llm.llm_engine.step
    steps = [0]

    def stepping() -> Any:
        if steps[0] in at:
            assert inside.scheduler(llm).reset_prefix_cache(reset_running_requests=True)
        steps[0] += 1
        return step()

    engine.step = stepping
    try:
        return served.recorded(llm, requests)
    finally:
        del engine.step


def test_dropped_tokens_are_dropped(kind, zoo, truth):
    """Under async scheduling a reset drops tokens that were sampled already; proposers see the text without them."""
    # Drafted from earlier answers, they would end before the second reset.
    params = {"max_tokens": MAX_TOKENS, "specplug": {"store": False}}
    requested = [{"id": f"q{i}", "prompt": PROMPTS[i], "params": params} for i in range(6)]
    found = zoo.call(interrupted, requests=requested, at=[4, 7])
    assert_greedy(PROMPTS[:6], truth[:6], [found["outputs"][f"q{i}"] for i in range(6)])
    assert found["wrong"] == []
    assert found["counts"]["total"]["accepted"] > 0
    kinds = kinds_of(found, "q0")
    assert kinds[:5] == ["STARTED", "PREEMPTED", "RESUMED", "PREEMPTED", "RESUMED"]


def session(llm: Any, parts: list[list[int]], given: dict[str, Any]) -> dict[str, Any]:
    """Feed one request its prompt in parts, each answered before the next: vLLM's streaming input.

    Returns the answers' ids by part, under "turns", the "records" of the proposer `recorder`, if there is one, and
    under "planned" the request if specplug's planner knows it, with its limits, when a turn has ended.
    """
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    engine = llm.llm_engine
    params = inside.sampling({"ignore_eos": True, **given})
    params.output_kind = RequestOutputKind.DELTA
    tasks = engine.get_supported_tasks()
    first: EngineCoreRequest | None = None
    turns: list[list[int]] = []
    planned: set[str] = set()
    with watching.recording(llm) as records:
        for part in parts:
            name = "session" if first is None else first.request_id
            prompt = {"prompt_token_ids": part}
            request = engine.input_processor.process_inputs(name, prompt, params, supported_tasks=tasks, resumable=True)
            if first is None:
                engine.input_processor.assign_request_id(request)
                first = request
            request.external_req_id = "session"
            engine.output_processor.add_request(request, None, None, 0)
            engine.engine_core.add_request(copy.deepcopy(request))  # both sides write to their prompt
            turn: list[int] = []
            for _ in range(200):
                outputs = [output.outputs[0] for output in engine.step()]
                turn += [token for output in outputs for token in output.token_ids]
                if any(output.finish_reason for output in outputs):
                    break
            turns.append(turn)
            if planner := getattr(inside.scheduler(llm), "step_planner", None):
                planned |= planner._tallies.keys() & {first.request_id}
        engine.abort_request(["session"])
        engine.step()
    return {"turns": turns, "records": records, "planned": sorted(planned)}


def test_an_id_comes_again_without_having_finished(zoo, baseline):
    """A streaming session continues with a longer prompt under its old id, as an update in a new generation."""
    parts = [PROMPTS[0], PROMPTS[3], PROMPTS[1][:40]]
    expected, found = (one.call(session, parts=parts, given={"max_tokens": 12}) for one in (baseline, zoo))
    assert found["turns"] == expected["turns"]
    assert kinds_of(found, "session") == ["STARTED", "UPDATED", "UPDATED", "ABORTED"]
    assert not found["planned"], "the next turn has other limits"
    records = found["records"]
    assert len({record["generation"] for record in records if record.get("request_id") == "session"}) == 3
    assert_last_text(found, parts)


def assert_last_text(found: dict[str, Any], parts: list[list[int]]) -> None:
    """Compare the text of a `session` that proposers saw last with its parts, each before what was kept of a turn."""
    texts = [
        dict(zip(record["request_ids"], record["texts"], strict=True))
        for record in found["records"]
        if record["call"] == "ingest"
    ]
    last = [text["session"] for text in texts if "session" in text][-1]
    kept = [token for part, turn in zip(parts, found["turns"], strict=True) for token in (*part, *turn[:-1])]
    assert last[: len(kept)] == kept


def test_a_turn_of_a_session_ends_inside_a_draft(zoo, baseline):
    """The next turn sees no token of the draft behind the end, and all of its own."""
    parts = [PROMPTS[0], PROMPTS[22][:40]]
    plain = baseline.call(session, parts=parts[:1], given={"max_tokens": 16})["turns"][0]
    given = {"max_tokens": 16, "stop_token_ids": plain[3:4], **drafts_of(plain)}
    expected = baseline.call(session, parts=parts, given={**given, "specplug": None})
    found = zoo.call(session, parts=parts, given=given)
    assert found["turns"] == expected["turns"]
    assert len(expected["turns"][0]) == 4
    assert_last_text(found, parts)


def test_vllm_counts_the_accepted_tokens_after_an_end_too(zoo, truth):
    """Under async scheduling a row runs once more after its end, and vLLM drops that step without counting it.

    The drafts go on after the ends with what plain decoding would write there, so that they would be accepted.
    """
    answers = [answer["token_ids"] for answer in truth[:6]]
    params = [{"stop_token_ids": [answer[MAX_TOKENS // 2]], **drafts_of(answer)} for answer in answers]
    found = zoo.call("served.counted", prompts=PROMPTS[:6], params=params)
    assert {answer["finish_reason"] for answer in found["answers"]} == {"stop"}
    total = found["total"]
    dropped = found["accepted_by_vllm"] - found["total"]["accepted"]
    assert total["emitted"] == sum(len(answer["token_ids"]) for answer in found["answers"])
    assert total["emitted"] == total["target_steps"] + total["accepted"]
    assert 0 < dropped <= total["after_stop"]


@pytest.mark.parametrize("kind", ["v2"], indirect=True)
def test_the_requests_of_the_engines_warm_up_are_nobodys(kind, zoo):
    found = zoo.call(warmed_up)
    assert found["steps"] >= 6  # a prefill and decoding steps, and one that ends the requests
    records = [record for record in found["records"] if "request_id" in record or "request_ids" in record]
    names = {name for record in records for name in (record.get("request_ids") or [record["request_id"]])}
    assert not [name for name in names if "warmup" in name]
    assert {count for count in found["total"].values() if isinstance(count, int)} == {0}
    assert found["faults"] == {}


def warmed_up(llm: Any) -> dict[str, Any]:
    """Run the warm-up of V2's kernels as vLLM's GPU worker does, and return what specplug noticed of it."""
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    runner = inside.runner(llm)
    driver = inside.core(llm).model_executor.driver_worker
    worker = getattr(driver, "worker", driver)
    most = runner.scheduler_config.max_num_seqs
    steps = []

    def execute_model(scheduler_output: Any) -> Any:
        steps.append(scheduler_output)
        return worker.execute_model(scheduler_output)

    runner.scheduler_config.max_num_seqs = 2  # in Triton's interpreter
    try:
        with watching.recording(llm) as records:
            with watching.counting(llm) as counts:
                warmup_kernels(runner, execute_model, worker.sample_tokens)
            llm.reset_prefix_cache()  # it writes over blocks that it does not ask the scheduler for
    finally:
        runner.scheduler_config.max_num_seqs = most
    return {"steps": len(steps), "records": records, **counts}
