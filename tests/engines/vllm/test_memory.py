"""Room in vLLM's memory for what proposers take later, in the engine's own sizing of its cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from specplug.errors import PluginError
from specplug.steps.draft_stage import DraftStage
from specplug_vllm.worker import hooks
from specplug_vllm.worker.drafting import Drafting
from tests.engines.vllm import watching

GIB = 1 << 30
LATER = GIB // 2


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker that has what its sizing reads, and 8 GiB of which it may use half."""
    for worker_class in (Worker, CPUWorker):
        monkeypatch.setattr(worker_class, "determine_available_memory", worker_class.determine_available_memory)
    status = SimpleNamespace(total_memory=8 * GIB, available_memory=6 * GIB)
    monkeypatch.setattr(cpu_worker, "get_memory_node_info", lambda _node: status)
    monkeypatch.setattr(hooks, "free_bytes", lambda _device: 6 * GIB)
    monkeypatch.setattr(cpu_worker.psutil.Process, "memory_info", lambda _self: SimpleNamespace(rss=GIB))
    hooks.reserve_memory(SimpleNamespace(stage=SimpleNamespace(bytes_to_allocate=1)))
    made = object.__new__(CPUWorker)
    made.requested_cpu_memory = 4 * GIB
    made.cache_config = SimpleNamespace(kv_cache_memory_bytes=None)
    made.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True), model_config=SimpleNamespace(enforce_eager=True)
    )
    monkeypatch.setattr(CPUWorker, "_should_warm_up_model", lambda _self: False)
    made.model_runner = SimpleNamespace(device=torch.device("cpu"))
    return made


def drafts(worker: Any, later: int) -> None:
    handle = SimpleNamespace(spec=SimpleNamespace(name="big"), to_allocate=later)
    drafting = object.__new__(Drafting)
    stage = object.__new__(DraftStage)
    stage.runners = (SimpleNamespace(handle=handle),)
    drafting.stage = stage
    drafting.device = torch.device("cpu")
    worker.model_runner.drafter = SimpleNamespace(drafting=drafting)


def test_declared_bytes_are_taken_off_what_the_cache_is_sized_by(worker):
    without = worker.determine_available_memory()
    drafts(worker, LATER)
    assert worker.determine_available_memory() == without - LATER == 3 * GIB - LATER


def test_a_cache_of_an_explicit_size_keeps_it_where_there_is_room_beside_it(worker):
    worker.cache_config.kv_cache_memory_bytes = 5 * GIB
    drafts(worker, LATER)
    assert worker.determine_available_memory() == 5 * GIB
    drafts(worker, GIB + 1)
    with pytest.raises(PluginError, match="not enough memory"):
        worker.determine_available_memory()


def test_drafts_made_on_another_device_leave_the_cache_alone(worker):
    drafts(worker, LATER)
    worker.model_runner.drafter.drafting.device = torch.device("meta")
    assert worker.determine_available_memory() == 3 * GIB


def test_what_a_lookup_holds_is_left_out_of_the_cache_of_a_server(engine):
    """On a GPU vLLM finds it in use when it sizes its cache; memory of a CPU is in use once it is written."""
    v2 = engine("v2", specplug={"proposer": "ngram"}, draft_length=4, asynchronous=True, name="lookup")
    found = v2.call(held_and_left_out)
    assert found["held"] <= found["left out"] <= 1.05 * found["held"]
    assert found["sized by"] == [f"{hooks.__name__}._available_memory"]


def held_and_left_out(llm: Any) -> dict[str, Any]:
    stage = watching.drafting(llm).stage
    steps = stage.runners[0].handle.proposer.steps
    tensors = [it for it in steps.state if isinstance(it, torch.Tensor)]
    return {
        "held": sum([it.nbytes for it in (steps.texts, *tensors)]),
        "left out": 8 * GIB - stage.leave_room(8 * GIB),
        "sized by": list(CPUWorker.determine_available_memory._specplug),
    }
