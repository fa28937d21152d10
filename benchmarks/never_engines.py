"""The engines of `benchmarks.never_slower`: one process each, in which a block of requests is served by one arm.

All functions but `configuration` run in an engine's process, or in SGLang's scheduler's.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

PLUGINS = Path(__file__).parent / "plugins"

OFF, POLICY = "no speculation", "policy batch"
ENGINES = ("vllm-v1", "sglang", "vllm-v2", "vllm-v2-cut")
TIMED = ENGINES[:2]
DRAFT_LENGTH = 15  # specplug's default

# Every arm answers the same prompts, and would remember them from the arm before it.
SETTINGS = {"proposer": "ngram", "policy": "arms", "options": {"ngram": {"memory_tokens": 0}}}

Arm = str | int
"""`OFF`, `POLICY`, or a constant draft length."""


def configuration(engine: str, concurrency: int) -> Any:
    """Return the launch configuration of an engine for so many requests at a time."""
    if engine == "sglang":
        return _sglang(concurrency)
    from tests.engines.vllm.launch import configuration

    spec = {"method": "custom_class", "model": "specplug_vllm.Proposer", "num_speculative_tokens": DRAFT_LENGTH}
    if engine == "vllm-v2-cut":
        spec["enable_adaptive_verification"] = True
    found = configuration(
        "v1" if engine == "vllm-v1" else "v2",
        SETTINGS,
        speculative_config=spec,
        max_num_seqs=concurrency,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    found.environment["PYTHONPATH"] += f":{PLUGINS}"  # type: ignore[index]
    return found


def _sglang(concurrency: int) -> Any:
    import json

    from tests.engines.sglang.launch import configuration

    stated = json.dumps({**SETTINGS, "faults": {"host_deadline_ms": None}})
    found = configuration(
        "SPECPLUG",
        draft_length=DRAFT_LENGTH,
        sampling=True,
        environment={"SPECPLUG_CONFIG": stated},
        max_running_requests=concurrency,
        max_total_tokens=concurrency * 1024,
        disable_radix_cache=True,
    )
    paths = f"{found.always['PYTHONPATH']}:{PLUGINS}"
    return type(found)(found.arguments, {**found.environment, "PYTHONPATH": paths})


def block(
    engine: Any, arm: Arm, prompts: list[str], params: dict[str, Any], concurrency: int, max_tokens: int
) -> dict[str, Any]:
    """Serve prompts by one arm, with `concurrency` of them in flight.

    Args:
        engine: vLLM's `LLM` or SGLang's `Engine`.
        params: sampling parameters that both engines know by the same names.

    Returns:
        "token_ids" per prompt; "seconds"; the increase of the worker's counts "target_steps", "proposed", "verified"
        and "accepted"; and, under "policy", the counts of the policy's own steps before and after.
    """
    is_vllm = hasattr(engine, "llm_engine")
    begins, ends, serves = (_vllm_begin, _vllm_end, _vllm) if is_vllm else (_sglang_begin, _sglang_end, _sglang_serve)
    before = begins(engine, arm)
    token_ids, seconds = serves(engine, prompts, {**params, _MAX[is_vllm]: max_tokens}, concurrency)
    after = ends(engine)
    counted = {name: after["worker"][name] - before["worker"][name] for name in _COUNTED}
    policy = {"before": before["policy"], "after": after["policy"]}
    return {"token_ids": token_ids, "seconds": seconds, **counted, "policy": policy}


_MAX = {True: "max_tokens", False: "max_new_tokens"}
_COUNTED = ("target_steps", "proposed", "verified", "accepted")


def begin(step_planner: Any, stage: Any, arm: Arm) -> dict[str, Any]:
    """Begin an arm's turn in the process that plans; return the counts so far."""
    from specplug_arms import Arms

    step_planner.control.set(mode="off" if arm == OFF else "on")
    step_planner.holds_until = 0  # the plan of another arm
    Arms.newest.begin(step_planner.steps, arm if isinstance(arm, int) else None, arm == POLICY)
    return counts(step_planner, stage)


def counts(step_planner: Any, stage: Any) -> dict[str, Any]:
    """Return the worker's counts, and those of the policy's own steps."""
    from specplug_arms import Arms

    policy = asdict(Arms.newest.count(step_planner.steps))
    return {"worker": stage.metrics.snapshot().total.as_dict(), "policy": policy}


# -- vLLM ------------------------------------------------------------------------------------------------------------


def _vllm_begin(llm: Any, arm: Arm) -> dict[str, Any]:
    from tests.engines.vllm import inside, watching

    return begin(inside.scheduler(llm).step_planner, watching.drafting(llm).stage, arm)


def _vllm_end(llm: Any) -> dict[str, Any]:
    from tests.engines.vllm import inside, watching

    return counts(inside.scheduler(llm).step_planner, watching.drafting(llm).stage)


def _vllm(llm: Any, prompts: list[str], params: dict[str, Any], concurrency: int) -> tuple[list[list[int]], float]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    given = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
    engine, began = llm.llm_engine, time.perf_counter()
    ids = {f"{time.monotonic_ns()}-{place}": prompt for place, prompt in enumerate(prompts)}
    waiting, found, running = iter(ids.items()), {}, 0
    while len(found) < len(ids):
        while running < concurrency and (following := next(waiting, None)) is not None:
            engine.add_request(*following, given)
            running += 1
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
            running -= 1
    return [found[name] for name in ids], time.perf_counter() - began


# -- SGLang ----------------------------------------------------------------------------------------------------------


def _sglang_begin(engine: Any, arm: Arm) -> dict[str, Any]:
    from tests.engines.sglang.inside import in_scheduler

    found: dict[str, Any] = in_scheduler(engine, "benchmarks.never_engines:begin_in_scheduler", {"arm": arm})
    return found


def _sglang_end(engine: Any) -> dict[str, Any]:
    from tests.engines.sglang.inside import in_scheduler

    found: dict[str, Any] = in_scheduler(engine, "benchmarks.never_engines:counts_in_scheduler", {})
    return found


def begin_in_scheduler(scheduler: Any, arm: Arm) -> dict[str, Any]:
    """Begin an arm's turn in SGLang's scheduler."""
    drafting = scheduler.draft_worker.drafting
    return begin(drafting.step_planner, drafting.stage, arm)


def counts_in_scheduler(scheduler: Any) -> dict[str, Any]:
    """Return the counts in SGLang's scheduler."""
    drafting = scheduler.draft_worker.drafting
    return counts(drafting.step_planner, drafting.stage)


def _sglang_serve(
    engine: Any, prompts: list[str], params: dict[str, Any], concurrency: int
) -> tuple[list[list[int]], float]:
    found: list[list[int]] = [[] for _ in prompts]
    waiting = iter(enumerate(prompts))

    async def client() -> None:
        for place, prompt in waiting:
            output = await engine.async_generate(prompt=prompt, sampling_params=dict(params))
            found[place] = list(output["output_ids"])

    async def clients() -> None:
        await asyncio.gather(*(client() for _ in range(concurrency)))

    began = time.perf_counter()
    engine.loop.run_until_complete(clients())
    return found, time.perf_counter() - began
