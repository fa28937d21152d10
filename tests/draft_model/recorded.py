"""Recorded: functions captured as a GPU captures CUDA graphs, on any device.

What a function launches is recorded once, and run again as it was: whatever it has decided in Python stays as it is,
and it may read only tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from specplug.draft_model.loop import Graphs
from tests.steps.test_no_sync import COPIES_IN, READS_BACK


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self:  # in inference mode composite operations arrive whole
            result = func.decompose(*args, **kwargs or {})
        if result is not NotImplemented:
            return result
        assert func.__name__.split(".")[0] not in READS_BACK | COPIES_IN, f"{func} cannot be captured"
        result = func(*args, **kwargs or {})
        self.calls.append((func, args, kwargs or {}, result))
        return result


class RecordedGraphs(Graphs):
    """Graphs whose functions run again as they were recorded.

    Attributes:
        replayed: the keys of the functions that were run so.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), "recorded")
        self._recorded: dict[Hashable, list[tuple[Any, Any, Any, Any]]] = {}
        self.replayed: list[Hashable] = []

    def capture(self, key: Hashable, function: Callable[[], None]) -> None:
        function()
        with _Recorder() as recorder:
            function()
        self._recorded[key] = recorder.calls

    @torch.inference_mode()
    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        assert key in self._recorded, f"{key} was not captured"
        self.replayed.append(key)
        new: dict[int, Tensor] = {}

        def current(value: Any) -> Any:
            return new.get(id(value), value) if isinstance(value, Tensor) else value

        for func, args, kwargs, result in self._recorded[key]:
            again = func(*tree_map(current, args), **tree_map(current, kwargs))
            for old, fresh in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, Tensor) and all(old is not it for it in tree_leaves((args, kwargs))):
                    new[id(old)] = fresh
