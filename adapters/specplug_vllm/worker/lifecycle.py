"""Hooks on ``GPUModelRunner``: arriving and leaving requests, for both runners, and what V2's outputs report.

Requests are removed before the engine's step runs, as vLLM frees their slots then, and added after it, when vLLM has
assigned slots.  V2's warm-up sends dummy requests through the same method; the hook ignores these.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from specplug_vllm import step_metadata
from specplug_vllm.startup.engine_config import SCHEDULERS
from specplug_vllm.worker import adaptive
from specplug_vllm.worker.drafting import Drafting

_EXTERNAL = object()
"""Stands for the `drafting` of drafters that are not specplug's."""


def install(runner_class: Any) -> None:
    """Hook `execute_model` of a runner class, once.  Runners without specplug pass through."""
    original = runner_class.execute_model
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dummy_run"):
            return original(self, scheduler_output, *args, **kwargs)
        drafter = _drafter(self)
        drafting = getattr(drafter, "drafting", _EXTERNAL)
        if drafting is not _EXTERNAL:  # specplug's, also on ranks that do not draft
            drafter.before_step(self, scheduler_output)
        if not isinstance(drafting, Drafting) or is_warmup(self, scheduler_output):
            result = original(self, scheduler_output, *args, **kwargs)
        else:
            metadata = step_metadata.of(scheduler_output)
            if metadata.events or scheduler_output.finished_req_ids or scheduler_output.preempted_req_ids:
                _leave(drafting, scheduler_output, metadata)
            result = original(self, scheduler_output, *args, **kwargs)
            resumed = getattr(scheduler_output.scheduled_cached_reqs, "resumed_req_ids", ())  # V1
            if scheduler_output.scheduled_new_reqs or resumed:
                _arrive(drafting, scheduler_output.scheduled_new_reqs, metadata.cache_salts, resumed)
            drafting.begin_step(scheduler_output)
        if hasattr(self, "adaptive_verification"):  # V2, also on ranks that do not draft
            adaptive.set_plan(self, scheduler_output)
        return result

    execute_model._specplug = True  # type: ignore[attr-defined]
    runner_class.execute_model = execute_model


def install_reports(runner_class: Any) -> None:
    """Hook `sample_tokens` of V2's runner class, once: its outputs bring what only the worker knows of a step."""
    original = runner_class.sample_tokens
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if output is not None:
            result = getattr(output, "model_runner_output", output)
            step_metadata.state_late(result, getattr(_drafter(self), "late", None))
            adaptive.report(self, result)
        return output

    sample_tokens._specplug = True  # type: ignore[attr-defined]
    runner_class.sample_tokens = sample_tokens


def is_warmup(runner: Any, scheduler_output: Any) -> bool:
    """Return whether the step is a warm-up: specplug's scheduler is in use and did not mark the step as its own."""
    if step_metadata.has(scheduler_output):
        return False
    return runner.vllm_config.scheduler_config.scheduler_cls in SCHEDULERS.values()


def drafting_of(runner: Any) -> Drafting | None:
    """Return the `Drafting` of a V1 or V2 runner, or None."""
    drafting = getattr(_drafter(runner), "drafting", None)
    return drafting if isinstance(drafting, Drafting) else None


def _drafter(runner: Any) -> Any:
    return getattr(runner, "drafter", None) or getattr(runner, "speculator", None)


def _leave(drafting: Drafting, scheduler_output: Any, metadata: step_metadata.StepMetadata) -> None:
    for kind in metadata.events:
        drafting.on_engine_event(kind)
    for request_id in sorted(scheduler_output.finished_req_ids):
        ending = metadata.endings.get(request_id, step_metadata.Ending())
        drafting.allocator.finish(request_id, aborted=ending.aborted, visible=ending.visible)
    for request_id in sorted(scheduler_output.preempted_req_ids or ()):
        drafting.allocator.preempt(request_id)


def _arrive(drafting: Drafting, started: Iterable[Any], salts: Mapping[str, str], resumed: Iterable[str]) -> None:
    for new in started:  # on V2 also resumed requests
        drafting.start(new, salts.get(new.req_id))
    for request_id in resumed:
        drafting.allocator.resume(request_id, drafting.text_of(request_id))
