"""Launch of compiled host functions in the order of an engine's stream, and reuse of the objects that they write to.

On a GPU the driver calls the function from a thread of its own (`cuLaunchHostFunc`).  This is the default because no
core spins while the device computes.  The stream stands still until the function returns and nothing can contain a
function that hangs, so whoever launches one bounds its work per step.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar

import torch

from specplug.errors import ContractError, EngineError

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""The type of host functions, `void f(void *argument)`; ctypes releases the GIL while one runs."""

_callable = cache(HOST_FUNCTION)

_LOOK = 1e-3
"""Seconds between two looks at a mark."""


class Mark(ABC):
    """A point in a stream."""

    @property
    @abstractmethod
    def reached(self) -> bool:
        """True once all work before the mark has ended; never waits."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until the mark is reached."""

    def ends_within(self, seconds: float) -> bool:
        """Wait until the mark is reached, at most so long; return whether it is."""
        end = time.monotonic() + seconds
        while not self.reached and time.monotonic() < end:
            time.sleep(_LOOK)
        return self.reached


class HostFunctionStream(ABC):
    """A stream that runs compiled functions on the host, in order with the engine's kernels."""

    @abstractmethod
    def launch(self, function: int, argument: int) -> None:
        """Enqueue a call of a host function; never wait for it.

        The function may run on any thread.  It must be compiled code that takes no GIL, makes no CUDA call and does a
        bounded amount of work: a Python callback could wait for a GIL whose holder waits for the stream.

        Args:
            function: the address of a C function `void f(void *)`.
            argument: the address that it is called with; what is there must live until a mark after the call is
                reached.
        """

    @abstractmethod
    def mark(self) -> Mark:
        """Return a mark after all work that is enqueued so far."""


class InlineStream(HostFunctionStream):
    """The stream of a CPU, where all earlier work has ended: `launch` calls the function at once, without the GIL."""

    def launch(self, function: int, argument: int) -> None:
        _callable(function)(argument)

    def mark(self) -> Mark:
        return _REACHED


class _Reached(Mark):
    """A mark without work before it."""

    @property
    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_REACHED = _Reached()


class CudaStream(HostFunctionStream):
    """The current CUDA stream of the calling thread's current device, looked up at every call.

    Raises:
        EngineError: the CUDA driver cannot be loaded or refuses a launch, or a CUDA graph is being captured.
    """

    def __init__(self) -> None:
        self._driver = load_driver()

    def launch(self, function: int, argument: int) -> None:
        refuse_capture("a host function cannot be launched")
        stream = torch.cuda.current_stream().cuda_stream
        result = self._driver.cuLaunchHostFunc(stream, function, argument)
        if result != 0:
            raise EngineError.build(
                "the CUDA driver refused to launch a host function",
                who="cuLaunchHostFunc",
                found=error_name(self._driver, result),
                expected="CUDA_SUCCESS",
            )

    def mark(self) -> Mark:
        refuse_capture("a mark cannot be recorded")
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return _EventMark(event)


class _EventMark(Mark):
    """A mark that is a recorded CUDA event."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    @property
    def reached(self) -> bool:
        # CUDA forbids queries of events during a capture: one would invalidate the engine's graph.
        return not torch.cuda.is_current_stream_capturing() and self._event.query()  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        refuse_capture("nothing can wait for a mark")
        self._event.synchronize()


def stream_for(device: torch.device) -> HostFunctionStream:
    """Return the stream of a device's kernels.

    Raises:
        EngineError: there is none for devices of this type, or the CUDA driver cannot be loaded.
    """
    if device.type == "cpu":
        return InlineStream()
    if device.type == "cuda":
        return CudaStream()
    raise EngineError.build(
        "host functions cannot be launched on this device", found=device.type, expected="cpu or cuda"
    )


def load_driver() -> ctypes.CDLL:
    """Return the CUDA driver's library with the types of the functions that are used here.

    Raises:
        EngineError: it cannot be loaded.
    """
    try:
        driver = open_library("libcuda.so.1")
    except OSError as error:
        raise EngineError.build(
            "the CUDA driver cannot be loaded", found=error, remedy="Install the NVIDIA driver, or run on a CPU."
        ) from error
    driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    driver.cuLaunchHostFunc.restype = ctypes.c_int
    driver.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
    driver.cuGetErrorName.restype = ctypes.c_int
    return driver


def open_library(name: str) -> ctypes.CDLL:
    """Return a shared library; tests replace this function."""
    return ctypes.CDLL(name)


def error_name(driver: ctypes.CDLL, result: int) -> str:
    """Return the name of a CUresult, such as CUDA_ERROR_INVALID_HANDLE, and its number."""
    name = ctypes.c_char_p()
    known = driver.cuGetErrorName(result, ctypes.byref(name)) == 0 and name.value
    return f"{known.decode()} ({result})" if known else f"CUresult {result}"


def refuse_capture(what: str) -> None:
    """Raise during a capture: each replay of the graph would use the argument of the captured step."""
    if torch.cuda.is_current_stream_capturing():
        raise EngineError.build(
            f"{what} while a CUDA graph is being captured", remedy="Run the draft step outside the engine's graphs."
        )


T = TypeVar("T")


class Ring(Generic[T]):
    """Objects that steps in flight write to, such as buffers in pinned memory.

    Each is in use from `take` until the mark that it was given back with is reached.

    Nothing waits: when no object is free, `take` makes another.  An object that is taken and never given back, because
    the step raised, is not used again.  The ring keeps all objects that it has made, so keep it as long as the process:
    the device and host functions write to them until their marks are reached.  One thread uses it.

    Args:
        make: returns a new object.
        finish: called with each object once per use, in the order of use, after its mark is reached and before it is
            taken again; what the step left in it can be read there.
    """

    def __init__(self, make: Callable[[], T], finish: Callable[[T], None] | None = None) -> None:
        self._make, self._finish = make, finish
        self._objects: list[T] = []
        self._free: list[T] = []
        self._taken: dict[int, T] = {}
        self._pending: deque[tuple[T, Mark]] = deque()

    def __len__(self) -> int:
        """The number of objects made so far."""
        return len(self._objects)

    @property
    def taken(self) -> list[T]:
        """The objects that are taken and not given back."""
        return list(self._taken.values())

    def take(self) -> T:
        """Return an object that is free, or a new one."""
        self.collect()
        if self._free:
            item = self._free.pop()  # the one used last: its memory is likely in the caches
        else:
            item = self._make()
            self._objects.append(item)
        self._taken[id(item)] = item
        return item

    def give_back(self, item: T, mark: Mark) -> None:
        """Give an object back: it is free once `mark`, recorded after the last work on it, is reached.

        Raises:
            ContractError: the object is not taken.
        """
        if self._taken.pop(id(item), None) is None:
            raise ContractError.build(
                "an object was given back to a ring", found="one that is not taken", expected="one from `take`, once"
            )
        self._pending.append((item, mark))

    def collect(self, *, waits: bool = False) -> None:
        """Free the objects whose marks are reached, in the order of use; each of them is finished first.

        With `waits`, wait until no object that was given back is in use, as before a shutdown.
        """
        while self._pending:
            item, mark = self._pending[0]
            if waits:
                mark.wait()
            elif not mark.reached:
                break
            self._pending.popleft()
            try:
                if self._finish is not None:
                    self._finish(item)
            finally:
                self._free.append(item)
