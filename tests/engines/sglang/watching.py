"""Functions that drive an engine and record the calls of specplug's proposers; see `inside`.

The proposer `recorder` remembers; it is one of the engine's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.engines.sglang import inside, trees
from tests.engines.suites.served import wrong_texts

MOST_TRIES = 1000

TIGHT: dict[str, Any] = {"max_total_tokens": 900, "chunked_prefill_size": 64, "schedule_conservativeness": 0.1}
"""What launches an engine that reads prompts in pieces, and has room for some long answers only."""


def drive(
    engine: Any,
    requests: list[dict[str, Any]],
    aborts: dict[str, list[Any]] | None = None,
    pause: list[Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Run requests at once, each from its own time on, and abort some.

    Args:
        requests: each with "id", "prompt" (token ids), maybe "params", and maybe "after": [id, count], another request
            and how many tokens of it must be there first; and maybe "salt", of the prefix cache.
        aborts: by request id, or "*" for all of them, when, as "after".
        pause: SGLang's mode of pausing, and when, as "after"; it goes on at once.

    Returns:
        By id "token_ids", "finish_reason", "stop_reason", "meta".
    """
    return engine.loop.run_until_complete(_Drive(engine, aborts or {}, pause).all(requests))


class _Drive:
    def __init__(self, engine: Any, aborts: dict[str, list[Any]], pause: list[Any] | None) -> None:
        self._engine, self._aborts, self._pause = engine, dict(aborts), pause
        self._counts: dict[str, float] = {}
        self._more = asyncio.Condition()
        self._pausing: asyncio.Task[None] | None = None

    async def all(self, requests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        answers = await asyncio.gather(*map(self._one, requests))
        if self._pausing is not None:
            await self._pausing
        return dict(zip([request["id"] for request in requests], answers, strict=True))

    async def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        if "after" in request:
            async with self._more:
                await self._more.wait_for(lambda: self._is_there(request["after"]))
        params = {"temperature": 0.0, "max_new_tokens": 40, **request.get("params", {})}
        output: dict[str, Any] = {}
        stream = await self._engine.async_generate(
            input_ids=request["prompt"],
            sampling_params=params,
            rid=request["id"],
            stream=True,
            cache_salt=request.get("salt"),
        )
        async for output in stream:
            await self._note(request["id"], output["meta_info"]["completion_tokens"])
        await self._note(request["id"], float("inf"))
        return inside.described(output)

    async def _note(self, name: str, count: float) -> None:
        async with self._more:
            self._counts[name] = count
            self._more.notify_all()
        for leaving, after in list(self._aborts.items()):
            if self._is_there(after):
                del self._aborts[leaving]
                self._engine.tokenizer_manager.abort_request(leaving, abort_all=leaving == "*")

        if self._pause is not None and self._is_there(self._pause[1:]):
            mode, self._pause = self._pause[0], None
            self._pausing = asyncio.create_task(self._pause_once(mode))  # which waits for answers to end

    async def _pause_once(self, mode: str) -> None:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        await self._engine.tokenizer_manager.pause_generation(PauseGenerationReqInput(mode=mode))
        await asyncio.sleep(0.05)  # whatever still runs, runs into the pause
        await self._engine.tokenizer_manager.continue_generation(ContinueGenerationReqInput())

    def _is_there(self, after: list[Any]) -> bool:
        name, count = after
        return self._counts.get(name, 0) >= count


def recorded(engine: Any, requests: list[dict[str, Any]], **arguments: Any) -> dict[str, Any]:
    """Do as `drive` under "outputs"; under "records" the events that proposers received, under "left" what they hold at
    the end, under "counts" the counts of this call, and under "wrong" the (id, length) of wrong texts.
    """
    call(engine, begin)
    outputs = drive(engine, requests, **arguments)
    left = settled(engine)
    found = call(engine, end)
    finals = {request["id"]: [*request["prompt"], *outputs[request["id"]]["token_ids"]] for request in requests}
    return {"outputs": outputs, "left": left, **found, "wrong": wrong_texts(found["records"], finals)}


def settled(engine: Any) -> dict[str, int]:
    """Wait until nothing of any request is left, and return what is."""
    for _ in range(MOST_TRIES):
        left = call(engine, left_over)
        if not any(left.values()):
            break
        time.sleep(0.01)
    return left


def call(engine: Any, function: Any) -> Any:
    """Run a function of a module in the scheduler."""
    return inside.in_scheduler(engine, f"{function.__module__}:{function.__qualname__}", {})


# In the scheduler.


def begin(scheduler: Any) -> None:
    from specplug_testkit.recorder import RECORDS

    drafting = scheduler.draft_worker.drafting
    _catch_up(drafting.stage)
    RECORDS.clear()
    scheduler._watched = drafting.counts()


def end(scheduler: Any) -> dict[str, Any]:
    from specplug_testkit.recorder import RECORDS

    drafting = scheduler.draft_worker.drafting
    _catch_up(drafting.stage)
    counts = (drafting.counts() - scheduler._watched).as_dict()
    return {"records": list(RECORDS), "counts": counts}


def left_over(scheduler: Any) -> dict[str, int]:
    """Return how much is held of requests, by where."""
    drafting = scheduler.draft_worker.drafting
    return {
        "places": len(drafting.allocator),
        "waiting": len(drafting.allocator._waiting),
        "tenants": len(drafting.allocator.slots.occupants),
        "held": len(drafting.held),
        "tallies": len(drafting.step_planner._tallies),
        "capped": len(drafting.step_planner._capped),
        "steps under way": len(drafting.results.pending),
    }


def counts(scheduler: Any) -> dict[str, Any]:
    """Return what was counted so far: "total", "by_source", "faults"."""
    return dict(scheduler.draft_worker.drafting.counts().as_dict())


def hold_back(scheduler: Any, count: int) -> None:
    """Let no request start before `count` of them wait."""

    def prefill(running_batch: Any) -> Any:
        for req in scheduler.grammar_manager.get_ready_grammar_requests():
            scheduler._add_request_to_queue(req)
        if len(scheduler.waiting_queue) < count:
            from sglang.srt.managers.scheduler import NextBatchPlan

            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
        del scheduler.get_new_batch_prefill
        return original(running_batch)

    original = scheduler.get_new_batch_prefill
    scheduler.get_new_batch_prefill = prefill


def _catch_up(stage: Any) -> None:
    """Wait until host proposers have received all pending events."""
    from concurrent.futures import wait

    for handle in [runner.handle for runner in stage.runners]:
        wait(list(getattr(handle, "_unchecked", ())))


def retract_often(scheduler: Any, every: int) -> None:
    """Let SGLang retract at each n-th step, full or not."""
    import sglang.srt.managers.scheduler as module

    trees.put(module, "TEST_RETRACT", True)
    trees.put(module, "TEST_RETRACT_INTERVAL", every)


def gather(scheduler: Any, count: int) -> None:
    """Let the first requests wait until there are so many: what they need of memory then grows in step."""
    ingest = type(scheduler).ingest_requests

    def ingest_together() -> None:
        ingest(scheduler)
        while 0 < len(scheduler.waiting_queue) < count:
            ingest(scheduler)
        if scheduler.waiting_queue:
            del scheduler.ingest_requests

    scheduler.ingest_requests = ingest_together


def abort_retracted(scheduler: Any) -> None:
    """Retract every few steps, and abort the first request that is found waiting after it was retracted."""
    from sglang.srt.managers.io_struct import AbortReq

    ingest = type(scheduler).ingest_requests
    retract_often(scheduler, 5)

    def ingest_and_abort() -> None:
        ingest(scheduler)
        moved = [req for req in scheduler.waiting_queue if req.retraction_count]
        if moved:
            del scheduler.ingest_requests
            trees.restore(scheduler)
            scheduler.abort_request(AbortReq(rid=moved[0].rid))

    scheduler.ingest_requests = ingest_and_abort
