"""Records of scheduler and worker by step: functions that run inside an engine's process, and a check of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.engines.plain import assert_greedy, greedy, prompts
from tests.engines.vllm import inside
from tests.engines.vllm.watching import counting, drafting, plain_name, stage_takes_steps


def recorded(llm: Any, requests: list[dict[str, Any]], gamma: int | None = None) -> dict[str, Any]:
    """Run requests as `inside.drive` does, with the operator's limit `gamma` on the draft length.

    Returns:
        "outputs", as `inside.drive`, and "record": per step that ran any request "drafts" (draft tokens by request id),
        "prefill" (prompt tokens by request id) and "requested" (how many draft tokens per request were asked for).
    """
    scheduler = inside.scheduler(llm)
    record: list[dict[str, Any]] = []
    if hasattr(scheduler, "step_planner"):
        scheduler.step_planner.control.set(num_speculative_tokens=gamma)
    original = scheduler.schedule
    known = {}

    def schedule(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            known[new.req_id] = new.num_computed_tokens
        drafts = {}
        prefill = {}
        for request_id, count in output.num_scheduled_tokens.items():
            name = plain_name(request_id)
            length = scheduler.requests[request_id].num_prompt_tokens
            drafts[name] = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            if known[request_id] < length:
                prefill[name] = min(count - drafts[name], length - known[request_id])
                known[request_id] += prefill[name]
        if output.total_num_scheduled_tokens:
            requested = output.num_spec_tokens_to_schedule
            record.append({"drafts": drafts, "prefill": prefill, "requested": requested})
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "schedule", schedule)
        return {"outputs": inside.drive(llm, requests), "record": record}


def cut(llm: Any, requests: list[dict[str, Any]], trim: bool = True) -> dict[str, Any]:
    """Run requests on an engine that cuts drafts on the device, after specplug's own half if that is to `trim`.

    Returns:
        What `recorded` returns; "admitted", per step with drafts how many the engine verified by request id;
        "verified", per step and row that emitted anything what specplug was told and what it had proposed
        (name, engine's count, proposed); and the counts of `SpecMetrics` meanwhile.
    """
    worker = drafting(llm)
    runner = inside.runner(llm)
    reported = []
    admitted = []
    begin_step = worker.begin_step
    observe = worker.stage.observe
    manager = runner.adaptive_verification
    reallocate_drafts = manager.reallocate_drafts

    def noting_reallocate_drafts(req_ids: list[str], idx_mapping: Any) -> Any:
        found = reallocate_drafts(req_ids, idx_mapping)
        ends = found[0].tolist()
        counts = [end - start - manager.num_bonus_tokens for start, end in pairwise(ends)]
        admitted.append({plain_name(name): count for name, count in zip(req_ids, counts, strict=True)})
        return found

    def noting_observe(batch: Any, outcome: Any) -> Any:
        verdict = observe(batch, outcome)
        columns = (outcome.verified.tolist(), verdict.proposed.tolist(), batch.sampled.tolist())
        rows = zip(batch.request_ids, *columns, strict=True)
        reported.append({plain_name(name): (count, proposed) for name, count, proposed, sampled in rows if sampled})
        return verdict

    def begin_step_without_trim(scheduler_output: Any) -> None:
        begin_step(scheduler_output)
        worker.plan = replace(worker.plan, token_budget=None)

    with stage_takes_steps(llm), counting(llm) as counts, pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager, "reallocate_drafts", noting_reallocate_drafts)
        patch.setattr(worker.stage, "observe", noting_observe)
        if not trim:
            patch.setattr(worker, "begin_step", begin_step_without_trim)
        found = recorded(llm, requests)
    return {**found, "admitted": admitted, "verified": reported, **counts}


# -- in the test's process -------------------------------------------------------------------------------------------


def requests(count: int, tokens: int = 32, apart: int = 2, **params: Any) -> list[dict[str, Any]]:
    """Return requests that join one by one, so that rows change places."""
    return [
        {"id": str(i), "prompt": list(prompt), "at": apart * i, "params": {"max_tokens": tokens, **params}}
        for i, prompt in enumerate(prompts()[:count])
    ]


def assert_greedy_texts(run: dict[str, Any], requested: list[dict[str, Any]]) -> None:
    """Hold the answers of a run against the plain model's."""
    given = [request["prompt"] for request in requested]
    truth = [greedy(tuple(request["prompt"]), request["params"]["max_tokens"]) for request in requested]
    assert_greedy(given, truth, [run["outputs"][request["id"]] for request in requested])
