"""Engine events that proposers receive, and drafts in vLLM's own interfaces, without a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import inside

TEXT = "def area(r):\n    return 3.14 * r * r\n\ndef area(r):\n    return"  # goes on by repeating itself


def engine_events(llm: Any) -> list[str]:
    """Return the engine's events since the last call, in order; a step makes the recorder's thread catch up."""
    from specplug_testkit import recorder

    inside.generate(llm, ["a b c"], {"max_tokens": 2})
    kinds = [record["kind"] for record in recorder.RECORDS if record["call"] == "event"]
    recorder.RECORDS.clear()
    return [kind for kind in kinds if not kind.isupper()]  # those of requests are names of an enum


def reset_prefix_cache(llm: Any) -> bool:
    return llm.reset_prefix_cache()


def reload_weights(llm: Any) -> None:
    llm.collective_rpc("reload_weights")


def load_weights_of_the_model(llm: Any) -> None:
    """Load as a training framework's worker extension does."""
    inside.runner(llm).get_model().load_weights([])


def load_weights_that_fail(llm: Any) -> str:
    try:
        inside.runner(llm).get_model().load_weights([("no.such.weight", None)])
    except Exception as error:
        return type(error).__name__
    return "loaded"


def zero_weights_and_back(llm: Any) -> None:
    llm.collective_rpc("reset_weights")
    llm.collective_rpc("reload_weights")


def finish_weight_transfer(llm: Any, is_draft: bool) -> None:
    """End a weight transfer; its transport, which needs a GPU, does nothing here."""
    from types import SimpleNamespace

    worker = inside.core(llm).model_executor.driver_worker.worker
    transport = SimpleNamespace(finish_weight_update=lambda: None, reset_weight_update_target=lambda: None)
    worker.weight_transfer_engine, worker._weight_update_active = transport, True
    worker._weight_update_is_draft = is_draft
    llm.collective_rpc("finish_weight_update")


def sleep(llm: Any, level: int) -> None:
    llm.sleep(level)


def wake_up(llm: Any, tags: list[str] | None = None) -> None:
    llm.wake_up(tags)


def asleep_and_part_awake(llm: Any) -> list[str]:
    """Sleep, and wake up the weights only; return the events that proposers have received."""
    from specplug_testkit import recorder

    llm.sleep(1)
    llm.wake_up(["weights"])
    time.sleep(0.1)  # nothing may follow; what does within this time is found by the next test step at the latest
    return [record["kind"] for record in recorder.RECORDS if record["call"] == "event" and not record["kind"].isupper()]


@pytest.fixture(scope="module", params=["v1", "v2"])
def recording(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Engine:
    """An engine whose proposer remembers events, and whose draft length changes every step."""
    draft_lengths = {"ladder": {"draft_lengths": [3, 0, 1, 8]}}
    return engine(
        request.param,
        {"proposer": "recorder", "policy": "ladder", "options": draft_lengths},
        name=f"recording_{request.param}",
        per_request_spec_decode_metrics="detailed",
    )


def test_proposers_learn_what_happens_to_the_engine(recording):
    assert recording.call(engine_events) == []  # loading the model was no change
    assert recording.call(reset_prefix_cache) is True
    assert recording.call(engine_events) == ["cache flushed"]
    recording.call(reload_weights)
    assert recording.call(engine_events) == ["weights changed"]
    recording.call(load_weights_of_the_model)
    assert recording.call(engine_events) == ["weights changed"]
    recording.call(zero_weights_and_back)
    assert recording.call(engine_events) == ["weights changed"] * 2
    assert recording.call(load_weights_that_fail) != "loaded"
    assert recording.call(engine_events) == ["weights changed"]


def test_proposers_learn_of_a_weight_transfer(recording):
    recording.call(engine_events)
    recording.call(finish_weight_transfer, is_draft=True)
    assert recording.call(engine_events) == []
    recording.call(finish_weight_transfer, is_draft=False)
    assert recording.call(engine_events) == ["weights changed"]


def test_proposers_learn_of_sleep_and_wake(recording):
    recording.call(engine_events)
    recording.call(sleep, level=0)
    recording.call(wake_up, tags=["scheduling"])
    assert recording.call(engine_events) == []  # only the scheduler paused
    assert recording.call(asleep_and_part_awake) in ([], ["sleep"])
    recording.call(wake_up, tags=["kv_cache"])
    assert recording.call(engine_events) == ["sleep", "wake", "cache flushed"]  # the last one comes with the step


def counted_request(llm: Any) -> dict[str, Any]:
    """Return vLLM's own counts of one request and what specplug counted meanwhile."""
    stage = (getattr(inside.runner(llm), "speculator", None) or inside.runner(llm).drafter).drafting.stage
    before = stage.metrics.snapshot()
    output = llm.generate([TEXT], inside.sampling({"max_tokens": 32, "ignore_eos": True}), use_tqdm=False)[0]
    spent = (stage.metrics.snapshot() - before).total.as_dict()
    return {"vllm": output.outputs[0].spec_decode_metrics.to_dict(), "specplug": spent}


def test_vllm_reports_what_became_of_a_requests_drafts(recording):
    found = recording.call(counted_request)
    mine, ours = found["vllm"], found["specplug"]
    assert {1, 3} <= set(mine["per_step_drafted"]) <= set(range(1, 9))  # lengths 1, 3, 8; V1 drafts no more than fit
    assert len(mine["per_step_drafted"]) == mine["num_spec_steps"] < ours["target_steps"]  # steps at draft length 0
    assert mine["num_spec_tokens"] == 8
    assert len(mine["acceptance_histogram"]) == 9
    assert sum(mine["per_step_accepted"]) == mine["num_accepted_draft_tokens"] >= ours["accepted"] > 0
    assert mine["num_draft_tokens"] >= ours["verified"]  # V2 counts padding
    assert recording.call(inside.facts)["v2"] or mine["num_draft_tokens"] == ours["verified"]


def test_status_of_an_offline_engine(recording):
    (worker,) = recording.call(worker_status)
    assert worker["drafts"]
    assert worker["proposers"] == ["recorder"]
    assert worker["metrics"]["total"]["target_steps"] > 0


def worker_status(llm: Any) -> Any:
    return llm.collective_rpc("specplug_status")


def test_drafting_is_closed_once_before_its_worker_shuts_down():
    import weakref
    from types import SimpleNamespace

    from vllm.v1.worker.worker_base import WorkerBase

    from specplug_vllm.worker import hooks
    from specplug_vllm.worker.drafting import Drafting

    order: list[str] = []

    class Base(WorkerBase):
        def shutdown(self):
            order.append("base")

    class Worker(Base):
        def shutdown(self):
            order.append("worker")
            super().shutdown()

    drafting = object.__new__(Drafting)
    drafting._closing = weakref.finalize(drafting, order.append, "drafting")
    worker = object.__new__(Worker)
    worker.model_runner = SimpleNamespace(speculator=SimpleNamespace(drafting=drafting))
    hooks._hook_workers()
    worker.shutdown()
    assert order == ["drafting", "worker", "base"]
    del worker.model_runner  # a worker that ends before it has one
    worker.shutdown()
