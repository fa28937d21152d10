"""Engine events that a worker reports to its proposers: new weights, sleep, wake-up and shutdown.

The scheduler reports a flushed prefix cache with the next step (see `scheduler`).  All events here arrive between two
steps, because a worker runs such calls and its steps one after the other.

Weights change through ``reload_weights``; through a weight transfer, which ends with ``finish_weight_update``; through
``reset_weights``, which zeroes them; and through third-party code, such as a training framework's worker extension,
that calls the model's own ``load_weights``.
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

_MEMORY = frozenset(("weights", "kv_cache"))  # memory that vLLM releases to sleep, and restores in parts or at once
_CHANGES = "_specplug_weights"  # attribute of a runner that holds its `_Weights`
_ASLEEP = "_specplug_asleep"


def install_worker(runner: Any, drafting: Drafting) -> None:
    """Hook a runner, its model and its worker.  Call it once per runner, at its first step.

    Earlier events belong to start-up, when no proposer has learnt anything.
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
    """Context manager around a change of weights.

    It reports one event at the end of the outermost change, because a reload nests a load.  It also reports a change
    that fails, since some of the weights may be new.
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
        """Return `original` wrapped as a change of weights."""

        @functools.wraps(original)
        def change(*args: Any, **kwargs: Any) -> Any:
            with self:
                return original(*args, **kwargs)

        return change


def _hook_workers() -> None:
    """Hook this process's worker classes, once.  At the first step they include the worker's own class."""
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
    """Wrap `finish_weight_update`.  A transfer to vLLM's own draft model does not change the target's weights."""
    of_target = _changes_weights(original)

    def finish_weight_update(self: Any, *args: Any, **kwargs: Any) -> Any:
        of_draft = getattr(self, "_weight_update_is_draft", False)
        return (original if of_draft else of_target)(self, *args, **kwargs)

    return finish_weight_update


def _sleeps(original: Method) -> Method:
    """Wrap `sleep`.  Proposers are notified first, while the device's memory is still intact."""

    def sleep(self: Any, *args: Any, **kwargs: Any) -> Any:
        asleep, drafting = _asleep(self), drafting_of(self.model_runner)
        if drafting is not None and not asleep:
            drafting.on_engine_event("sleep")
        asleep.update(_MEMORY)
        return original(self, *args, **kwargs)

    return sleep


def _wakes(original: Method) -> Method:
    """Wrap `wake_up`.  Memory may come back in parts: proposers are notified once all of it is back."""

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
    """Wrap `shutdown`.  Drafting closes first and flushes its trace."""

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafting = drafting_of(getattr(self, "model_runner", None))
        if drafting is not None:
            drafting.close()
        return original(self, *args, **kwargs)

    return shutdown


def _asleep(worker: Any) -> set[str]:
    """Return the memory that a worker has released; stored on the worker, as hooks of its base classes share it."""
    asleep: set[str] = worker.__dict__.setdefault(_ASLEEP, set())
    return asleep
