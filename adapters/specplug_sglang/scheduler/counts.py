"""Draft counters for the status, read without a device sync while steps run.

Steps without drafts are counted on the host (`SpecMetrics.record_on_host`).  The other counters live on the device.
They are copied to the host a few times a second, and a status request during a step gets the newest copy that has
arrived.  When no step runs, the counters themselves are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from specplug.metrics import MetricsSnapshot, SpecMetrics

PERIOD = 0.2
"""Least seconds between two copies while steps run."""


class Counts:
    """The newest counts known on the host.

    Args:
        metrics: the counters, on a device.
        device_module: PyTorch's module for that device, such as `torch.cuda`; None if the device is the host.
        clock: returns seconds.
    """

    def __init__(self, metrics: SpecMetrics, device_module: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._module, self._clock = metrics, device_module, clock
        self._newest = tuple(torch.zeros_like(part, device="cpu") for part in metrics.tensors())
        self._coming: tuple[Any, tuple[Tensor, ...]] | None = None
        self._last: Any = None  # the event at the end of the last step
        self._due = 0.0

    def step(self) -> None:
        """Record that a step with drafts was queued on the current stream, and start a copy if one is due."""
        if self._module is None:
            return
        self._arrive()
        if self._coming is None and self._clock() >= self._due:
            copied = tuple(part.to("cpu", non_blocking=True, copy=True) for part in self._metrics.tensors())
            self._coming = self._event(), copied
            self._due = self._clock() + PERIOD
        self._last = self._event()

    def read(self) -> MetricsSnapshot:
        """Return the counts after the last step with drafts if it has ended, else those of an earlier one."""
        if self._module is None:
            return self._metrics.snapshot()
        self._arrive()
        if self._last is not None and self._last.query():  # read once: steps without drafts change nothing
            self._newest = tuple(part.to("cpu", copy=True) for part in self._metrics.tensors())
            self._last = self._coming = None
        return self._metrics.snapshot(self._newest)

    def _arrive(self) -> None:
        """Take a copy that has arrived."""
        if self._coming is not None and self._coming[0].query():
            self._newest, self._coming = self._coming[1], None

    def _event(self) -> Any:
        event = self._module.Event()
        event.record()
        return event
