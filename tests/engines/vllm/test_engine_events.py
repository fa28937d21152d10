"""Engine events that proposers receive, and the status of an engine without a server."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.vllm import inside

HAPPENINGS: dict[str, Callable[[Any], Any]] = {
    "the prefix cache is reset": lambda llm: llm.reset_prefix_cache(),
    "weights are reloaded": lambda llm: llm.collective_rpc("reload_weights"),
    # as a training framework's worker extension does
    "the model loads weights": lambda llm: inside.runner(llm).get_model().load_weights([]),
    "loading fails": lambda llm: load_what_is_not_there(llm),
    "weights are zeroed": lambda llm: llm.collective_rpc("reset_weights"),
    "weights of a draft model arrive": lambda llm: finish_weight_transfer(llm, is_draft=True),
    "weights arrive": lambda llm: finish_weight_transfer(llm, is_draft=False),
    "the scheduler pauses": lambda llm: (llm.sleep(0), llm.wake_up(["scheduling"])),
    "sleep": lambda llm: llm.sleep(1),
    "a part wakes up": lambda llm: (llm.wake_up(["weights"]), time.sleep(0.1)),
    "the rest wakes up": lambda llm: llm.wake_up(["kv_cache"]),
}


def load_what_is_not_there(llm: Any) -> None:
    with pytest.raises(Exception, match="weight"):
        inside.runner(llm).get_model().load_weights([("no.such.weight", None)])


def finish_weight_transfer(llm: Any, is_draft: bool) -> None:
    """End a weight transfer; its transport, which needs a GPU, does nothing here."""
    worker = inside.core(llm).model_executor.driver_worker.worker
    transport = SimpleNamespace(finish_weight_update=lambda: None, reset_weight_update_target=lambda: None)
    worker.weight_transfer_engine = transport
    worker._weight_update_active = True
    worker._weight_update_is_draft = is_draft
    llm.collective_rpc("finish_weight_update")


def events_of(llm: Any, happening: str | None = None, step: bool = True) -> list[str]:
    """Let something happen; return the engine's events since the last call, in order.

    A step makes the recorder's thread catch up, unless the engine is asleep.
    """
    from specplug_testkit.recorder import RECORDS

    if happening is not None:
        HAPPENINGS[happening](llm)
    if step:
        inside.generate(llm, ["a b c"], {"max_tokens": 2})
    kinds = [record["kind"] for record in RECORDS if record["call"] == "event"]
    RECORDS.clear()
    return [kind for kind in kinds if not kind.isupper()]  # those of requests are names of an enum


@pytest.fixture(scope="module", params=["v1", "v2"])
def recording(request: pytest.FixtureRequest, engine: Callable[..., Engine]) -> Engine:
    """An engine whose proposer remembers events."""
    return engine(request.param, {"proposer": "recorder", "policy": "fixed"}, name=f"recording {request.param}")


def test_proposers_learn_what_happens_to_the_engine(recording):
    assert recording.call(events_of) == []  # loading the model was no change
    for happening, expected in (
        ("the prefix cache is reset", ["cache flushed"]),
        ("weights are reloaded", ["weights changed"]),
        ("the model loads weights", ["weights changed"]),
        ("weights are zeroed", ["weights changed"]),
        ("weights are reloaded", ["weights changed"]),
        ("loading fails", ["weights changed"]),
        ("weights of a draft model arrive", []),
        ("weights arrive", ["weights changed"]),
        ("the scheduler pauses", []),
    ):
        assert recording.call(events_of, happening=happening) == expected, happening
    seen = recording.call(events_of, happening="sleep", step=False)
    seen += recording.call(events_of, happening="a part wakes up", step=False)
    assert seen in ([], ["sleep"])  # nothing else may follow; what does is found below at the latest
    seen += recording.call(events_of, happening="the rest wakes up")
    assert seen == ["sleep", "wake", "cache flushed"]  # the last one comes with the step


def test_status_of_an_offline_engine(recording):
    (worker,) = recording.call(worker_status)
    assert (worker["drafts"], worker["proposers"]) == (True, ["recorder"])
    assert worker["metrics"]["total"]["target_steps"] > 0


def worker_status(llm: Any) -> Any:
    return llm.collective_rpc("specplug_status")


def test_drafting_is_closed_once_before_its_worker_shuts_down():
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

    own = object.__new__(Drafting)
    own._closing = weakref.finalize(own, order.append, "drafting")
    worker = object.__new__(Worker)
    worker.model_runner = SimpleNamespace(speculator=SimpleNamespace(drafting=own))
    hooks._hook_workers()
    worker.shutdown()
    assert order == ["drafting", "worker", "base"]
    del worker.model_runner  # a worker that ends before it has one
    worker.shutdown()
