"""Graphs: functions of fixed shapes that a GPU runs as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from specplug.errors import PluginError


class Graphs:
    """Functions without arguments or results, which read and write tensors that stay where they are.

    On a GPU each is captured once, and is one launch from then on.  Elsewhere they run as they are.

    Args:
        device: where they run.
        who: the name of what they compute, for messages.
    """

    def __init__(self, device: torch.device, who: str) -> None:
        self._is_captured, self._who = device.type == "cuda", who
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None

    def capture(self, key: Hashable, function: Callable[[], None]) -> None:
        """Capture a function, after it has run once; call this before serving.

        Raises:
            PluginError: it cannot be captured, for example because it reads a number back.
        """
        if not self._is_captured:
            return
        function()
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, pool=self._pool):
                function()
        except RuntimeError as error:
            raise PluginError.build(
                "the draft model cannot be captured as a CUDA graph",
                who=self._who,
                found=str(error).splitlines()[0],
                expected="a model whose forward pass reads nothing back from the device",
                remedy="Choose another draft model",
            ) from error
        self._pool = graph.pool()
        self._graphs[key] = graph

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Run a function, by its graph if it has been captured under this key."""
        graph = self._graphs.get(key)
        if graph is None:
            function()
        else:
            graph.replay()
