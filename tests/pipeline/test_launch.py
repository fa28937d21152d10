"""Host functions run in the order of a stream: inline on CPUs, by the driver on GPUs, and late on the tests' stream."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import carray, cfunc

from specplug.errors import EngineError
from specplug.pipeline.stream import launch
from specplug.pipeline.stream.launch import HOST_FUNCTION, CudaStream, HostFunctionStream, InlineStream, stream_for

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


def host_function(log: list, entry: int):
    """Return a host function in Python, which only tests may use; keep it until it has been called."""
    return HOST_FUNCTION(lambda argument: log.append((entry, argument)))


class TestInline:
    def test_the_function_is_called_with_its_argument_at_once(self):
        stream, values = InlineStream(), np.array([21, 0])
        stream.launch(double.address, values.ctypes.data)
        assert values.tolist() == [21, 42]
        log: list = []
        function = host_function(log, 0)
        stream.launch(ctypes.cast(function, ctypes.c_void_p).value, 0)
        assert log == [(0, None)], "NULL is an argument"

    def test_the_function_runs_without_the_gil(self):
        state = np.zeros(3, np.int64)
        other = threading.Thread(target=release, args=[state])
        other.start()
        InlineStream().launch(answer.address, state.ctypes.data)
        other.join()
        assert state[ENDED] == 1


class FakeDriver:
    """The functions of libcuda that are used, as C functions that record their arguments and return `result`."""

    def __init__(self, stream: HostFunctionStream | None = None) -> None:
        self.launches: list = []
        self.result = 0
        self._stream = stream
        self._name = ctypes.create_string_buffer(b"CUDA_ERROR_INVALID_HANDLE")
        pointer = ctypes.c_void_p
        self.cuLaunchHostFunc = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer)(self._launch)
        self.cuGetErrorName = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(pointer))(self._error_name)

    def _launch(self, stream: int | None, function: int, argument: int | None) -> int:
        self.launches.append((stream, function, argument))
        if self._stream is not None:
            self._stream.launch(function, argument or 0)
        return self.result

    def _error_name(self, result: int, name) -> int:
        if result != INVALID_HANDLE:
            return 1  # CUDA_ERROR_INVALID_VALUE
        name[0] = ctypes.addressof(self._name)
        return 0


class FakeEvent:
    """A CUDA event that has ended when the test says so."""

    def __init__(self, **options: bool) -> None:
        self.options, self.ended, self.calls = options, False, []

    def record(self) -> None:
        self.calls.append("record")

    def query(self) -> bool:
        self.calls.append("query")
        return self.ended

    def synchronize(self) -> None:
        self.calls.append("synchronize")


class Cuda:
    """What the tests replace of `torch.cuda` and the driver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver, self.handle, self.capturing = FakeDriver(), CUDA_STREAM, False
        self.opened: list[str] = []
        self.events: list[FakeEvent] = []
        monkeypatch.setattr(launch, "open_library", self._open)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=self.handle))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch.cuda, "Event", self._event)

    def _open(self, name: str) -> FakeDriver:
        self.opened.append(name)
        return self.driver

    def _event(self, **options: bool) -> FakeEvent:
        self.events.append(FakeEvent(**options))
        return self.events[-1]


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


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
        assert cuda.driver.launches == [
            (CUDA_STREAM, 0x7FFF_0000_1000, 0x7FFF_0000_2000),
            (None, 0x7FFF_0000_1000, None),  # NULL
        ]

    @pytest.mark.parametrize(
        ("result", "shown"), [(INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE (400)"), (12345, "CUresult 12345")]
    )
    def test_a_refused_launch_is_an_error_with_the_drivers_name_for_it(self, cuda, result, shown):
        cuda.driver.result = result
        with pytest.raises(EngineError) as caught:
            CudaStream().launch(1, 2)
        assert shown in str(caught.value)
        assert "cuLaunchHostFunc" in str(caught.value)

    def test_nothing_is_launched_or_recorded_or_queried_while_a_graph_is_captured(self, cuda):
        """A query would invalidate the graph."""
        stream = CudaStream()
        mark = stream.mark()
        cuda.events[0].ended = cuda.capturing = True
        for refused in (lambda: stream.launch(1, 2), stream.mark, mark.wait):
            with pytest.raises(EngineError, match="CUDA graph is being captured"):
                refused()
        assert not mark.reached
        assert not cuda.driver.launches
        assert [event.calls for event in cuda.events] == [["record"]]

    def test_a_mark_is_an_event_recorded_in_the_stream(self, cuda):
        mark = CudaStream().mark()
        [event] = cuda.events
        assert event.options == {"blocking": True}
        assert not mark.reached
        event.ended = True
        assert mark.reached
        mark.wait()
        assert event.calls == ["record", "query", "query", "synchronize"]

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
