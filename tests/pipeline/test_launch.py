"""Host functions run in the order of a stream: inline on CPUs, by the driver on GPUs, and late on the tests' stream."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numba import carray, cfunc

from specplug.errors import EngineError
from specplug.pipeline.stream import launch
from specplug.pipeline.stream.launch import HOST_FUNCTION, CudaStream, InlineStream, stream_for

STARTED, RELEASED, ENDED = range(3)
LONGEST_SPIN = 100_000_000
CUDA_STREAM = 0x7F00_1234_5678  # does not fit in 32 bits, as addresses do not
INVALID_HANDLE = 400

yield_core = ctypes.CDLL(None).sched_yield
yield_core.argtypes, yield_core.restype = [], ctypes.c_int


@cfunc("void(voidptr)")
def double(address):
    values = carray(address, 2, np.int64)
    values[1] = values[0] * 2


@cfunc("void(voidptr)")
def answer(address):
    """Wait in compiled code until Python code has seen `STARTED` and set `RELEASED`, which a held GIL would prevent."""
    state = carray(address, 3, np.int64)
    state[STARTED] = 1
    for _ in range(LONGEST_SPIN):
        if state[RELEASED] == 1:
            state[ENDED] = 1
            return
        yield_core()  # also makes the compiler read the state anew


def release(state: np.ndarray) -> None:
    """Hold the interpreter in a loop of Python code until the host function has started, then let it end."""
    while state[STARTED] == 0:
        pass
    state[RELEASED] = 1


class TestInline:
    def test_the_function_is_called_with_its_argument_at_once(self):
        stream, values = InlineStream(), np.array([21, 0])
        stream.launch(double.address, values.ctypes.data)
        assert values.tolist() == [21, 42]
        log: list = []
        function = HOST_FUNCTION(log.append)  # in Python, which only tests may use
        stream.launch(ctypes.cast(function, ctypes.c_void_p).value, 0)
        assert log == [None], "NULL is an argument"

    def test_the_function_runs_without_the_gil(self):
        state = np.zeros(3, np.int64)
        other = threading.Thread(target=release, args=[state])
        other.start()
        InlineStream().launch(answer.address, state.ctypes.data)
        other.join()
        assert state[ENDED] == 1


@pytest.fixture
def cuda(monkeypatch):
    """Replace what is used of `torch.cuda` and the driver; return what they answer, and what they were called with."""
    fake = SimpleNamespace(handle=CUDA_STREAM, capturing=False, result=0, opened=[], events=[], launches=[])
    known, pointer = ctypes.create_string_buffer(b"CUDA_ERROR_INVALID_HANDLE"), ctypes.c_void_p

    def launch_host_function(*arguments: int | None) -> int:
        fake.launches.append(arguments)
        return fake.result

    def error_name(result: int, name) -> int:
        if result != INVALID_HANDLE:
            return 1  # CUDA_ERROR_INVALID_VALUE
        name[0] = ctypes.addressof(known)
        return 0

    driver = SimpleNamespace(
        cuLaunchHostFunc=ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)(launch_host_function),
        cuGetErrorName=ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(pointer))(error_name),
    )

    def event(**options: bool) -> Mock:
        fake.events.append(Mock(options=options, **{"query.return_value": False}))
        return fake.events[-1]

    monkeypatch.setattr(launch, "open_library", lambda name: fake.opened.append(name) or driver)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=fake.handle))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.capturing)
    monkeypatch.setattr(torch.cuda, "Event", event)
    return fake


def calls(event: Mock) -> list[str]:
    return [name for name, *_ in event.method_calls]


class TestCuda:
    def test_the_driver_is_called_with_the_current_stream_the_function_and_the_argument(self, cuda):
        stream = CudaStream()
        stream.launch(0x7FFF_0000_1000, 0x7FFF_0000_2000)
        cuda.handle = 0  # the default stream
        stream.launch(0x7FFF_0000_1000, 0)
        assert cuda.opened == ["libcuda.so.1"]
        driver = launch.load_driver()
        assert driver.cuLaunchHostFunc.argtypes == [ctypes.c_void_p] * 3  # CUstream, CUhostFn, void *
        assert driver.cuGetErrorName.argtypes == [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        assert driver.cuLaunchHostFunc.restype is driver.cuGetErrorName.restype is ctypes.c_int  # CUresult
        assert cuda.launches == [
            (CUDA_STREAM, 0x7FFF_0000_1000, 0x7FFF_0000_2000),
            (None, 0x7FFF_0000_1000, None),  # NULL
        ]

    @pytest.mark.parametrize(
        ("result", "shown"), [(INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE (400)"), (12345, "CUresult 12345")]
    )
    def test_a_refused_launch_is_an_error_with_the_drivers_name_for_it(self, cuda, result, shown):
        cuda.result = result
        with pytest.raises(EngineError) as caught:
            CudaStream().launch(1, 2)
        assert shown in str(caught.value)
        assert "cuLaunchHostFunc" in str(caught.value)

    def test_nothing_is_launched_or_recorded_or_queried_while_a_graph_is_captured(self, cuda):
        """A query would invalidate the graph."""
        stream = CudaStream()
        mark = stream.mark()
        cuda.events[0].query.return_value = cuda.capturing = True
        for refused in (lambda: stream.launch(1, 2), stream.mark, mark.wait):
            with pytest.raises(EngineError, match="CUDA graph is being captured"):
                refused()
        assert not mark.reached
        assert not cuda.launches
        assert list(map(calls, cuda.events)) == [["record"]]

    def test_a_mark_is_an_event_recorded_in_the_stream(self, cuda):
        mark = CudaStream().mark()
        [event] = cuda.events
        assert event.options == {"blocking": True}
        assert not mark.reached
        event.query.return_value = True
        assert mark.reached
        mark.wait()
        assert calls(event) == ["record", "query", "query", "synchronize"]

    def test_without_a_driver_the_error_says_so(self, monkeypatch):
        def missing(name: str):
            raise OSError(f"{name}: cannot open shared object file")

        monkeypatch.setattr(launch, "open_library", missing)
        with pytest.raises(EngineError, match=r"libcuda\.so\.1"):
            CudaStream()


def test_each_type_of_device_has_its_stream(cuda):
    assert isinstance(stream_for(torch.device("cpu")), InlineStream)
    assert not cuda.opened, "the driver is loaded only for a GPU"
    assert isinstance(stream_for(torch.device("cuda", 0)), CudaStream)
    with pytest.raises(EngineError, match="found meta"):
        stream_for(torch.device("meta"))
