"""PollingStream: host functions called by a thread that polls memory, rather than by the driver.

The stream writes a number to pinned memory where a host function is due, and waits until the thread has written the
same number back (`cuStreamWriteValue32`, `cuStreamWaitValue32`).  The function starts sooner than by
`cuLaunchHostFunc`, for which the driver wakes a thread of its own, but a core is busy while steps run.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specplug.errors import EngineError
from specplug.match.cpu.compiled import compiled
from specplug.match.cpu.intrinsics import call_at, load, store
from specplug.pipeline.stream.launch import CudaStream, error_name, refuse_capture

READY, DONE, STOPPED, WORDS = range(4)
"""Indices of the shared words: the number of functions due, and ended, modulo 2^32, and 1 to stop the thread."""

MOST_LAUNCHED = 1024
"""Most host functions that are launched and have not ended."""

_SPINS, _NAP = 1 << 16, 50
"""Looks at memory, about a millisecond, after which the thread sleeps between two of them, in microseconds."""

_WORD = 1 << 32
_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ, which compares modulo 2^32


@compiled
def serve(words: Any, functions: Any, arguments: Any, sleep: int) -> None:
    """Call what becomes due, in order, until the thread is stopped."""
    ended, spins = 0, 0
    while load(words, STOPPED) == 0:
        if load(words, READY) == ended % _WORD:
            spins += 1
            if spins > _SPINS:
                call_at(sleep, _NAP)
            continue
        spins, entry = 0, ended % MOST_LAUNCHED
        call_at(functions[entry], arguments[entry])
        ended += 1
        store(words, DONE, ended % _WORD)


class PollingStream(CudaStream):
    """The current CUDA stream, whose host functions a thread of this process calls.

    Args:
        words: [`WORDS`] int64 zeros in memory that the device can write to; by default pinned memory.

    Raises:
        EngineError: as `CudaStream`; also if too many host functions have been launched and not ended.
    """

    def __init__(self, words: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__()
        value, stream = ctypes.c_uint32, ctypes.c_void_p
        for function in (self._driver.cuStreamWriteValue32_v2, self._driver.cuStreamWaitValue32_v2):
            function.argtypes, function.restype = [stream, ctypes.c_uint64, value, ctypes.c_uint], ctypes.c_int
        self._words = torch.zeros(WORDS, dtype=torch.int64, pin_memory=True).numpy() if words is None else words
        self._functions, self._arguments = np.zeros((2, MOST_LAUNCHED), np.int64)
        self._launched = 0
        sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value or 0
        given = self._words, self._functions, self._arguments, sleep
        self._words[STOPPED] = 1
        serve(*given)  # ends at once: compiled now, not at the first step
        self._words[STOPPED] = 0
        thread = threading.Thread(target=serve, args=given, name="specplug-polling", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _stop, self._words, thread)
        """Stop the thread; the steps must have ended."""

    def launch(self, function: int, argument: int) -> None:
        """Enqueue a call by the thread; see `HostFunctionStream.launch`."""
        refuse_capture("a host function cannot be launched")
        if (self._launched - int(self._words[DONE])) % _WORD >= MOST_LAUNCHED:
            raise EngineError.build(
                "too many host functions have been launched", who="PollingStream", expected=f"at most {MOST_LAUNCHED}"
            )
        entry = self._launched % MOST_LAUNCHED
        self._functions[entry], self._arguments[entry] = function, argument
        self._launched += 1
        number, stream, begin = self._launched % _WORD, torch.cuda.current_stream().cuda_stream, self._words.ctypes.data
        self._check(self._driver.cuStreamWriteValue32_v2(stream, begin + 8 * READY, number, 0), "cuStreamWriteValue32")
        self._check(
            self._driver.cuStreamWaitValue32_v2(stream, begin + 8 * DONE, number, _AT_LEAST), "cuStreamWaitValue32"
        )

    def _check(self, result: int, who: str) -> None:
        if result != 0:
            raise EngineError.build(
                "the CUDA driver refused an operation on memory",
                who=who,
                found=error_name(self._driver, result),
                expected="CUDA_SUCCESS",
            )


def _stop(words: npt.NDArray[np.int64], thread: threading.Thread) -> None:
    words[STOPPED] = 1
    thread.join()
