"""The device under test: its name, its clock, and work that keeps it busy.  A CPU stands in for a GPU in a dry run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch

MOST_CYCLES = 1 << 26
"""Longest delay before a timed step, tens of milliseconds."""

TRIES = 8
"""Most tries of a timed step, as each one that is not valid doubles the delay of the next."""


class Timing(NamedTuple):
    """Time of one step.

    Attributes:
        device: microseconds of the device, from before the step's first work to after its last.
        host: microseconds until the call returned.
        is_valid: false if the device waited for the host, so that `device` includes time of the host.
    """

    device: float
    host: float
    is_valid: bool


class Device(ABC):
    """A device with one stream.

    Attributes:
        device: as torch names it.
        name: the product's name.
    """

    device: torch.device
    name: str

    @abstractmethod
    def time(self, step: Callable[[], object]) -> Timing:
        """Run a step alone, and wait for it."""

    def valid_time(self, step: Callable[[], object]) -> float | None:
        """Return the microseconds of the device for a step that is tried until they are valid; None if none are."""
        timings = (self.time(step) for _ in range(TRIES))
        return next((timing.device for timing in timings if timing.is_valid), None)

    @abstractmethod
    def model_step(self, milliseconds: float) -> Callable[[], object]:
        """Return work that takes about this long, and that no host waits for, like a model's step."""

    @abstractmethod
    def recorded(self) -> Callable[[], object]:
        """Return a function that waits until all work that is enqueued so far has ended."""

    def synchronize(self) -> None:
        """Wait until all work that is enqueued so far has ended."""
        self.recorded()()


class Cpu(Device):
    """A CPU, on which all work ends before its call returns; its "device" time is that of the call."""

    device = torch.device("cpu")
    name = "CPU (dry run)"

    def time(self, step: Callable[[], object]) -> Timing:
        """Run a step."""
        began = time.perf_counter_ns()
        step()
        taken = (time.perf_counter_ns() - began) / 1e3
        return Timing(taken, taken, True)

    def model_step(self, milliseconds: float) -> Callable[[], object]:
        """Return a small matrix product, whatever the duration."""
        matrix = torch.ones(32, 32)
        return lambda: matrix @ matrix

    def recorded(self) -> Callable[[], object]:
        """Return a function that does nothing."""
        return lambda: None


class Gpu(Device):
    """A CUDA device, on the current stream.

    A timed step comes after a delay on the device, so that the host has launched all of the step when the delay ends;
    where it had not, the timing is not valid and the next delay is twice as long.
    """

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name()
        self._cycles = 1 << 20
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def time(self, step: Callable[[], object]) -> Timing:
        """Run a step after a delay."""
        torch.cuda.synchronize()
        torch.cuda._sleep(self._cycles)
        self._begin.record()
        began = time.perf_counter_ns()
        step()
        taken = (time.perf_counter_ns() - began) / 1e3
        self._end.record()
        is_late = self._begin.query()
        if is_late:
            self._cycles = min(2 * self._cycles, MOST_CYCLES)
        torch.cuda.synchronize()
        return Timing(self._begin.elapsed_time(self._end) * 1e3, taken, not is_late)

    def model_step(self, milliseconds: float) -> Callable[[], object]:
        """Return matrix products in bfloat16, as many as take about this long."""
        matrix = torch.randn(4096, 4096, dtype=torch.bfloat16, device=self.device)
        out = torch.empty_like(matrix)

        def products(count: int) -> None:
            for _ in range(count):
                torch.mm(matrix, matrix, out=out)

        products(50)  # the first ones are slower
        torch.cuda.synchronize()
        self._begin.record()
        products(200)
        self._end.record()
        torch.cuda.synchronize()
        count = max(1, round(milliseconds / (self._begin.elapsed_time(self._end) / 200)))
        return lambda: products(count)

    def recorded(self) -> Callable[[], object]:
        """Return a function that waits for an event, which is recorded here."""
        event = torch.cuda.Event()
        event.record()
        return event.synchronize


def open_device(kind: str) -> Device:
    """Return the device "cuda" or "cpu".

    Raises:
        SystemExit: there is no GPU.
    """
    if kind == "cpu":
        return Cpu()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here; --device cpu runs the same code on a CPU, with small sizes")
    return Gpu()
