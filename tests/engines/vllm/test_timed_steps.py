"""Steps that are timed before the first request: the policy learns of them, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.launch import TINY
from tests.engines.plain import greedy, prompts
from tests.engines.suites.operations import ask, complete
from tests.engines.vllm import inside
from tests.engines.vllm.launch import RUNNERS

NUMBA = os.environ.get("NUMBA_CACHE_DIR") or str(Path.home() / ".cache" / "specplug")
SETTINGS = {"proposer": "ngram", "policy": "learner"}
FEW = {"draft_length": 4, "max_num_seqs": 2}
"""Eleven sizes of steps: V2 in Triton's interpreter takes its time."""
PARAMS = [{"temperature": temperature, "seed": seed} for temperature, seed in ((0.0, None), (1.0, 7), (1.0, None))]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of the engines of this file."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def launched(engine: Callable[..., Engine], home: Path) -> Callable[..., Engine]:
    """Make an engine whose steps are timed for as long as it takes to see all sizes, which are few, or not at all."""

    def launch(*, runner: str, name: str, measure: bool = True, **kwargs: Any) -> Engine:
        settings = {**SETTINGS, "costs": {"measure": measure, "seconds": 20.0}}
        # The name tells apart engines that are otherwise alike, which would be one.
        environment = {"XDG_CACHE_HOME": str(home), "NUMBA_CACHE_DIR": NUMBA, "SPECPLUG_TEST_NAME": name}
        return engine(runner, settings, name=name, environment=environment, **{**FEW, **kwargs})

    return launch


def traces(llm: Any) -> dict[str, Any]:
    """Return where steps before the first request could have left something, and what the policy was told."""
    scheduler = inside.scheduler(llm)
    runner = inside.runner(llm)
    drafting = inside.core(llm).specplug_status()["workers"][0]
    pool = scheduler.kv_cache_manager.block_pool
    planner = scheduler.step_planner
    held = [getattr(runner, "requests", None), getattr(getattr(runner, "req_states", None), "req_id_to_index", None)]
    return {
        "costs": [[cost.requests, cost.tokens, cost.draft_length] for cost in planner.stage._planner.calibrated],
        "status": inside.core(llm).specplug_status()["scheduler"]["costs"],
        "reports": len(planner.stage._planner.reports),
        "steps": planner.steps,
        "requests": len(scheduler.requests) + len(scheduler.finished_req_ids) + sum(len(each) for each in held if each),
        "cached_blocks": len(pool.cached_block_hash_to_block),
        "blocks_in_use": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),  # one is vLLM's own
        "slots": drafting["slots"],
        "counts": drafting["metrics"],
        "vllm": {name: value for name, value in inside.metrics(llm).items() if "config" not in name},
        "scheduler": inside.named(type(scheduler)),
    }


def keep(llm: Any) -> list[list[float]]:
    """Write costs of two sizes to the cache file of an engine's own key, and return them."""
    from specplug.cost.measuring import Measurement
    from specplug.cost.store import cost_file, costs_at_start
    from specplug.types.step import StepCost
    from specplug_vllm.scheduler.timing import key_of

    key = key_of(llm.llm_engine.vllm_config)
    cost_file(key).unlink(missing_ok=True)
    kept = costs_at_start(key, lambda: Measurement((StepCost(1, 1, 0, 0, 0.5), StepCost(1, 4, 0, 3, 0.75)), True))
    return [[cost.tokens, cost.seconds] for cost in kept.costs]


def test_the_policy_learns_the_costs_before_the_first_request_and_nothing_else_changes(kind, launched):
    timed = launched(**RUNNERS[kind], name=f"timed {kind}")
    untimed = launched(**RUNNERS[kind], name=f"untimed {kind}", measure=False)
    found = timed.call(traces)
    without = untimed.call(traces)
    cuts = kind == "v1"  # plans there always have the longest drafts, so a draft length explains no costs
    sizes = {(1, 1, 0), (1, 2, 0), (1, 4, 0)} if cuts else {(1, 1, 0), (1, 2, 1), (1, 4, 3)}
    assert sizes <= {tuple(cost) for cost in found["costs"]}
    assert found["status"]["basis"] == "measured at start"
    assert len(found["status"]["steps"]) == len(found["costs"])
    assert (without["costs"], without["status"]["basis"]) == ([], "assumed")
    for name in ("costs", "status"):
        del found[name], without[name]
    assert found == without
    assert found["steps"] == found["reports"] == found["requests"] == found["cached_blocks"] == 0
    assert found["blocks_in_use"] == 0
    texts = [one.call(inside.generate, prompts=prompts()[:3], params=PARAMS) for one in (timed, untimed)]
    assert texts[0] == texts[1]
    found, without = (one.call(traces) for one in (timed, untimed))
    assert found["counts"] == without["counts"] != {}
    assert found["vllm"] == without["vllm"]
    assert found["vllm"]["vllm:prefix_cache_queries"] > 0


def test_a_second_start_reads_what_was_kept(launched):
    kept = launched(runner="v1", name="timed v1").call(keep)
    again = launched(runner="v1", name="timed again").call(traces)
    assert again["costs"] == [[1, 1, 0], [1, 4, 3]]
    assert again["status"]["basis"].startswith("from the cache file ")
    assert [[step["tokens"], step["ms"] / 1e3] for step in again["status"]["steps"]] == kept


@pytest.mark.parametrize(
    ("kind", "drafter"),
    [
        ("v1", {"method": "draft_model", "model": str(TINY)}),
        pytest.param("v1", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, marks=pytest.mark.slow),
        ("v2_async", {"method": "draft_model", "model": str(TINY)}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["method"],
)
def test_steps_of_the_engines_own_drafters_are_timed(engine, home, kind, drafter):
    own = engine(
        **RUNNERS[kind],
        specplug={"policy": "adaptive+batch", "costs": {"measure": True, "seconds": 20.0}},
        speculative_config={"num_speculative_tokens": FEW["draft_length"], **drafter},
        environment={"XDG_CACHE_HOME": str(home), "NUMBA_CACHE_DIR": NUMBA},
        name=f"timed {kind} {drafter['method']}",
        max_num_seqs=FEW["max_num_seqs"],
    )
    status = own.call(status_of)
    steps = {(step["requests"], step["tokens"], step["draft_length"]) for step in status["costs"]["steps"]}
    assert {(1, 1, 0), (1, 2, 1), (1, 4, 3)} <= steps
    assert status["steps"] == 0
    assert not any(count["emitted"] for count in status["metrics"]["by_source"].values())
    found = own.call(inside.generate, prompts=prompts()[:3], params={"max_tokens": 24})
    assert [answer["token_ids"] for answer in found] == [greedy(prompt, 24)["token_ids"] for prompt in prompts()[:3]]


def test_a_servers_engine_core_times_steps_in_its_own_process(serve, home):
    """It is forked here, as a forked server's always is, whatever start method vLLM is given."""
    server = serve(
        "v1",
        {**SETTINGS, "costs": {"measure": True, "seconds": 5.0}},
        environment={"XDG_CACHE_HOME": str(home / "server"), "NUMBA_CACHE_DIR": NUMBA},
        name="timed server",
    )
    complete(server)
    (engine,) = ask(server, "/specplug/status").json["engines"]
    costs = engine["scheduler"]["costs"]
    assert costs["basis"] == "measured at start"
    assert [1, 1, 0] in [[step["requests"], step["tokens"], step["draft_length"]] for step in costs["steps"]]


def status_of(llm: Any) -> dict[str, Any]:
    """Return the scheduler's part of an engine's status."""
    found: dict[str, Any] = inside.core(llm).specplug_status()["scheduler"]
    return found


def test_limits_of_a_small_engine_are_kept(launched):
    """A token budget that a full batch of drafts exceeds, and a context that leaves hardly any room."""
    small = launched(
        runner="v1", name="timed small", max_model_len=48, max_num_batched_tokens=48, max_num_seqs=8, draft_length=4
    )
    found = small.call(traces)
    assert found["requests"] == found["blocks_in_use"] == 0
    assert all(tokens <= 48 for _, tokens, _ in found["costs"])
    assert len(small.call(inside.generate, prompts=[[5, 6, 7]], params={"max_tokens": 4})[0]["token_ids"]) == 4


def retimed(llm: Any) -> dict[str, int]:
    """Time an engine's steps once more; return how many steps ran, and the most requests of those that were timed."""
    from specplug_vllm.scheduler import timing
    from specplug_vllm.scheduler.timed import measure_steps

    core = inside.core(llm)
    count = 0
    step = core.step_fn

    def counted() -> Any:
        nonlocal count
        count += 1
        return step()

    core.step_fn = counted
    try:
        found = measure_steps(core, timing._limits(core.vllm_config), 20.0)
    finally:
        core.step_fn = step
    return {"steps": count, "requests": max(cost.requests for cost in found.costs), "sizes": len(found.costs)}


def test_batches_that_the_cache_has_no_room_for_are_left_out(launched):
    small = launched(runner="v1", name="timed small", max_num_seqs=64, num_gpu_blocks_override=40)
    found = small.call(retimed)
    assert 8 <= found["requests"] < 64
    assert found["steps"] < 20 * found["sizes"], "steps are not repeated until there is room, which there never is"


def failed(llm: Any, steps: int) -> dict[str, Any]:
    """Time steps of an engine whose workers fail after so many of them; return the error and what is left in the core.

    Afterwards the workers run again.
    """
    from specplug_vllm.scheduler import timing
    from specplug_vllm.scheduler.timed import measure_steps

    core = inside.core(llm)
    scheduler = core.scheduler
    executor = core.model_executor
    execute = executor.execute_model
    count = 0
    while scheduler.has_requests() or core.batch_queue:  # asynchronous scheduling runs a step beyond the last token
        core.step_fn()

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count > steps:
            raise RuntimeError("a worker failed")
        return execute(*args, **kwargs)

    executor.execute_model = failing
    try:
        measure_steps(core, timing._limits(core.vllm_config), 20.0)
    except RuntimeError as error:
        return {"error": str(error), "queued": len(core.batch_queue or ()), "restored": core.scheduler is scheduler}
    finally:
        executor.execute_model = execute
    return {}


def held(llm: Any) -> list[str]:
    """Return the requests of timed steps that a worker holds."""
    runner = inside.runner(llm)
    known = getattr(runner, "requests", None) or getattr(getattr(runner, "req_states", None), "req_id_to_index", {})
    return [name for name in known if name.startswith("specplug-timed")]


def test_a_step_that_fails_leaves_nothing_to_the_first_requests(kind, launched):
    engine = launched(**RUNNERS[kind], name=f"timed {kind}")
    assert engine.call(failed, steps=7) == {"error": "a worker failed", "queued": 0, "restored": True}
    found = engine.call(inside.generate, prompts=prompts()[:3], params={"max_tokens": 24})
    assert [answer["token_ids"] for answer in found] == [greedy(prompt, 24)["token_ids"] for prompt in prompts()[:3]]
    assert engine.call(held) == []
