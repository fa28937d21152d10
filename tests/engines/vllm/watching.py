"""Functions that run inside an engine's process and look at what specplug does there; see `inside`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from specplug_vllm.worker.stage_steps import StageSteps
from tests.engines.vllm.inside import generate, runner


def drafting(llm: Any) -> Any:
    """Return the worker's `Drafting`, of an engine in one process."""
    return drafter(llm).drafting


def drafter(llm: Any) -> Any:
    """Return specplug's drafter on either runner, of an engine in one process."""
    found = getattr(runner(llm), "speculator", None) or runner(llm).drafter
    return getattr(found, "specplug", found)


def counts(llm: Any) -> dict[str, Any]:
    """Return what was counted so far: "total", "by_source", "faults"."""
    return drafting(llm).stage.metrics.snapshot().as_dict()


@contextmanager
def counting(llm: Any) -> Iterator[dict[str, Any]]:
    """Yield a dict, which has at the end of the block what was counted in it, as `counts`."""
    metrics_of = drafting(llm).stage.metrics
    grown: dict[str, Any] = {}
    before = metrics_of.snapshot()
    yield grown
    grown |= (metrics_of.snapshot() - before).as_dict()


@contextmanager
def recording(llm: Any) -> Iterator[list[dict[str, Any]]]:
    """Collect the records of the proposer `recorder`, under the ids of requests that the tests gave.

    Requests of its own bring proposers what happened before, and at the end.
    """
    from specplug_testkit.recorder import RECORDS

    generate(llm, [[5, 6, 7]], {"max_tokens": 2})
    RECORDS.clear()
    records: list[dict[str, Any]] = []
    yield records
    generate(llm, [[5, 6, 7]], {"max_tokens": 2})
    for record in RECORDS:
        names = {"request_id": plain_name(record["request_id"])} if record.get("request_id") else {}
        several = {"request_ids": [*map(plain_name, record["request_ids"])]} if record.get("request_ids") else {}
        records.append({**record, **names, **several})


@contextmanager
def stage_takes_steps(llm: Any) -> Iterator[None]:
    """Let the draft stage itself take all steps, whose calls can be noted, instead of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting(llm).stage, "has_observers", True)
        if hasattr(drafter(llm), "steps"):
            patch.setattr(drafter(llm), "steps", StageSteps(drafter(llm).drafting))
        yield


def plain_name(request_id: str) -> str:
    """Return the id that a test gave; vLLM appends to it."""
    return request_id.rpartition("-")[0] or request_id
