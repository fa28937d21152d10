"""Host functions called by a thread that polls memory: in order, each between its number's two writes."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import carray, cfunc

from benchmarks.gpu.polling import DONE, MOST_LAUNCHED, READY, WORDS, PollingStream
from specplug.errors import EngineError
from specplug.pipeline.stream import launch
from tests.pipeline.fake_stream import FakeStream

CUDA_STREAM = 0x7F00_1234_5678


@cfunc("void(voidptr)")
def count(address):
    carray(address, 1, np.int64)[0] += 1


class Driver:
    """The functions of libcuda that are used; what they enqueue runs on a fake stream."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.result, self.seen = stream, 0, []
        word = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
        function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.cuStreamWriteValue32_v2, self.cuStreamWaitValue32_v2 = word(self._write), word(self._wait)
        self.cuLaunchHostFunc = function(lambda *_: 1)
        self.cuGetErrorName = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(lambda *_: 1)

    def _write(self, stream: int, address: int, value: int, flags: int) -> int:
        self.seen.append(("write", stream, flags))
        if not self.result:
            self.stream.enqueue(lambda: ctypes.memmove(address, ctypes.byref(ctypes.c_uint32(value)), 4))
        return self.result

    def _wait(self, stream: int, address: int, value: int, flags: int) -> int:
        def wait() -> None:
            until = time.monotonic() + 30
            while (ctypes.c_uint32.from_address(address).value - value) % (1 << 32) >= 1 << 31:
                assert time.monotonic() < until, "the thread has not answered"
                time.sleep(0)

        self.seen.append(("wait", stream, flags))
        self.stream.enqueue(wait)
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch):
    with FakeStream() as stream:
        found = Driver(stream)
        monkeypatch.setattr(launch, "open_library", lambda name: found)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=CUDA_STREAM))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        yield found


@pytest.fixture
def polled(driver):
    stream = PollingStream(np.zeros(WORDS, np.int64))
    yield stream
    stream.close()


def test_functions_run_when_the_stream_comes_to_them_and_in_order(driver, polled):
    values = np.zeros(64, np.int64)
    time.sleep(0.1)  # the thread naps
    for _ in range(5):
        polled.launch(count.address, values.ctypes.data)
    time.sleep(0.01)
    assert not values.any(), "the stream has not come to them"
    driver.stream.run(2)  # a write and a wait
    assert values[0] == 1
    driver.stream.drain()
    assert values[0] == 5
    assert int(polled._words[READY]) == int(polled._words[DONE]) == 5
    assert driver.seen == [("write", CUDA_STREAM, 0), ("wait", CUDA_STREAM, 0)] * 5


def test_a_refused_write_and_more_than_can_be_remembered_are_errors(driver, polled):
    driver.result = 12345
    with pytest.raises(EngineError, match=r"cuStreamWriteValue32.*CUresult 12345"):
        polled.launch(count.address, 0)
    polled._launched = MOST_LAUNCHED
    with pytest.raises(EngineError, match="too many host functions"):
        polled.launch(count.address, 0)


def test_the_thread_ends(driver):
    stream = PollingStream(np.zeros(WORDS, np.int64))
    stream.close()
    stream.close()
    assert not stream.close.alive
