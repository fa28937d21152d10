"""What happens to the whole engine, told to the proposers of a worker: new weights, sleep, waking up, its end.

A flushed prefix cache is told by the scheduler, with the next step (see `scheduler`).  Everything here is told between
two steps: vLLM runs such calls and steps one after the other in a worker.

Weights change by ``reload_weights``; by a weight transfer, which ends with ``finish_weight_update``; by
``reset_weights``, which zeroes them; and by code of others, such as a training framework's worker extension, that calls
the model's own ``load_weights``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from specplug_vllm import seams
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.lifecycle import drafting_of

Method = Callable[..., Any]

_MEMORY = frozenset(("weights", "kv_cache"))  # what vLLM gives back when it sleeps, and can wake up part by part
_CHANGES = "_specplug_weights"  # where a runner keeps its `_Weights`
_ASLEEP = "_specplug_asleep"


def install_worker(runner: Any, drafting: Drafting) -> None:
    """Watch a runner, its model and its worker.  Call it once per runner, at its first step.

    What happens before that is the start: no proposer has learnt anything then.
    """
    if not seams.available("events"):
        return
    weights, model = _Weights(drafting), runner.get_model()
    setattr(runner, _CHANGES, weights)
    runner.reload_weights = weights.watched(runner.reload_weights)
    if hasattr(model, "load_weights"):
        model.load_weights = weights.watched(model.load_weights)
    _hook_workers()


class _Weights:
    """The context of a change of weights.  Told once, at the end of the outermost one: a reload loads within itself.

    Told also when it fails: some of the weights may be new by then.
    """

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._drafting.on_engine_event("weights changed")

    def watched(self, original: Method) -> Method:
        """Return `original` as a change of weights."""

        @functools.wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            with self:
                return original(*args, **kwargs)

        return change


def _hook_workers() -> None:
    """Hook this process's worker classes, once: the worker's own class is among them by now."""
    from vllm.v1.worker.worker_base import WorkerBase

    hooks = {
        "finish_weight_update": _finishes_update,
        "reset_weights": _changes_weights,
        "shutdown": _shuts_down,
        "sleep": _sleeps,
        "wake_up": _wakes,
    }
    for cls in _family(WorkerBase):
        for name, hook in hooks.items():
            original = cls.__dict__.get(name)
            if original is not None and not hasattr(original, "_specplug"):
                hooked = functools.wraps(original)(hook(original))
                hooked._specplug = True  # type: ignore[attr-defined]
                setattr(cls, name, hooked)


def _family(base: Any) -> Iterator[Any]:
    yield base
    for cls in base.__subclasses__():
        yield from _family(cls)


def _changes_weights(original: Method) -> Method:
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights: AbstractContextManager[None] = getattr(self.model_runner, _CHANGES, None) or nullcontext()
        with weights:
            return original(self, *args, **kwargs)

    return change


def _finishes_update(original: Method) -> Method:
    """A transfer to vLLM's own draft model leaves the target as it was."""
    of_target = _changes_weights(original)

    def finish_weight_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        of_draft = getattr(self, "_weight_update_is_draft", False)
        return (original if of_draft else of_target)(self, *args, **kwargs)

    return finish_weight_update


def _sleeps(original: Method) -> Method:
    """Proposers are told first, while the device's memory is as it was."""

    def sleep(self: Any, *args: Any, **kwargs: Any) -> Any:
        asleep, drafting = _asleep(self), drafting_of(self.model_runner)
        if drafting is not None and not asleep:
            drafting.on_engine_event("sleep")
        asleep.update(_MEMORY)
        return original(self, *args, **kwargs)

    return sleep


def _wakes(original: Method) -> Method:
    """Memory may come back part by part: proposers are told when all of it is there."""

    def wake_up(self: Any, tags: Any = None, *args: Any, **kwargs: Any) -> Any:
        result = original(self, tags, *args, **kwargs)
        asleep, drafting = _asleep(self), drafting_of(self.model_runner)
        was_asleep = bool(asleep)
        asleep.difference_update(tags or _MEMORY)
        if drafting is not None and was_asleep and not asleep:
            drafting.on_engine_event("wake")
        return result

    return wake_up


def _shuts_down(original: Method) -> Method:
    """Drafting ends first, and writes what it holds back of its trace."""

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafting = drafting_of(getattr(self, "model_runner", None))
        if drafting is not None:
            drafting.close()
        return original(self, *args, **kwargs)

    return shutdown


def _asleep(worker: Any) -> set[str]:
    """Return which memory a worker has given back; kept on the worker, as the hooks of its base classes share it."""
    asleep: set[str] = worker.__dict__.setdefault(_ASLEEP, set())
    return asleep
