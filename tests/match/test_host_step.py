"""Host steps of lookups: they run on threads that Python does not know, without the GIL, and cannot raise."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba.core import types

from specplug.match.cpu import host_step
from specplug.match.cpu.locks import TAKEN
from specplug.match.cpu.lookup import Lookup
from specplug.match.options import LookupSettings
from specplug.pipeline.cpu import host_function
from specplug.types.host_step import BUSY, OK
from tests.match.driver import POISON, held, poisoned
from tests.match.test_threads import CAPACITY, SLOTS, arguments_of, bits, memory, players

PYTHON = ("PyGILState", "numba_gil", "numba_unpickle", "PyErr", "PyObject", "Py_", "NRT_Allocate", "NRT_MemInfo_alloc")
"""Names, or prefixes of names, of functions that take the GIL, report exceptions, or allocate."""

RAISES = "picklebuf"
"""Part of the name of the constant that a raise statement of numba refers to."""


def code_of(function: Any, *signature: Any) -> str:
    """Return the code of a kernel, compiled anew, without numba's wrappers, which Python and ctypes call."""
    kernel = numba.njit(nogil=True, error_model="numpy")(function)
    kernel.compile(signature)
    code = kernel.overloads[signature].library.get_llvm_str()
    functions = re.findall(r"^define [^\n]*\{\n.*?^\}", code, re.MULTILINE | re.DOTALL)
    return "\n".join(it for it in functions if not re.match(r"define [^(]*@\"?(_ZN7cpython|cpython|cfunc)", it))


def ways_to_python(code: str) -> list[str]:
    """Return what in a code, or in the names that it declares, would take the GIL, raise or allocate."""
    return [word for word in (*PYTHON, RAISES) if word in code]


def declared_in(code: Any) -> str:
    """Return the names that a C function's code declares or defines."""
    return "\n".join(re.findall(r"^(?:declare|define) [^\n]*?@\"?([\w.]+)", code.inspect_llvm(), re.MULTILINE))


def lookup() -> Lookup:
    return Lookup(1, 2, 1, LookupSettings(memory_tokens=0), trees=False)


def raises_if(negative: int) -> int:
    """Raise an exception, as no kernel does."""
    if negative < 0:
        raise ValueError("negative")
    return negative


def allocates(count: int) -> Any:
    """Return a new array, as no kernel does."""
    return np.zeros(count)


def test_code_that_raises_or_allocates_is_recognised():
    assert RAISES in code_of(raises_if, types.int64)
    assert "NRT_MemInfo_alloc" in code_of(allocates, types.int64)


@pytest.mark.parametrize("kernel", [host_step.ingest_at, host_step.propose_at], ids=["ingest", "propose"])
def test_a_kernel_has_no_way_to_python(kernel):
    code = code_of(kernel.py_func, numba.typeof(lookup().state), types.int64)
    assert len(code) > 100_000  # all that it calls is there
    assert ways_to_python(code) == []


@pytest.mark.parametrize("entry", [host_step._entry, host_function._enter], ids=["of a lookup", "of a draft stage"])
def test_a_c_function_has_no_way_to_python(entry):
    """The wrapper that C code calls would take the GIL if anything in it could raise."""
    code = numba.cfunc("int32(int64)" if entry is host_step._entry else "void(int64)", error_model="numpy")(entry)
    assert ways_to_python(declared_in(code)) == []


class Step:
    """The first step of requests with random texts, for a lookup as the proposer calls it, and for a host step."""

    def __init__(self, threads: int = 1) -> None:
        talk, (self.plain, other) = players(1, threads)
        self.lookup = other.lookup
        new = [talk.lines() for _ in range(SLOTS)]
        lengths = [length + len(tokens) for length, tokens in zip(talk.length, new, strict=True)]
        self.new, self.lengths = new, lengths
        self.draft = poisoned(SLOTS, 4, trees=False)
        columns = {"lengths": lengths, "num_new": list(map(len, new)), "limits": [4] * SLOTS}
        self._held = {name: torch.tensor(it, dtype=torch.int32) for name, it in columns.items()}
        self._held["slots"] = self._held["table_rows"] = torch.arange(SLOTS)
        self._table = torch.full((SLOTS, CAPACITY), POISON, dtype=torch.int32)
        for row, (tokens, length) in enumerate(zip(new, lengths, strict=True)):
            self._table[row, length - len(tokens) : length] = torch.tensor(tokens, dtype=torch.int32)
        self.lookup.start_threads()
        self.function = self.lookup.host_step.function()
        self.arguments = arguments_of(self.draft, table=self._table, **self._held)
        self.arguments.data, self.arguments.stride = self.lookup.host_step.address, self._table.stride(0)
        self.arguments.num_rows = len(self._table)

    def expected(self) -> list[bytes]:
        """Return the draft of the plain lookup, which takes the step."""
        return bits(self.plain.step(list(range(SLOTS)), self.new, self.lengths, [4] * SLOTS))


def call(step: Step) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(step.function)
    return int(function(step.arguments.address))


def test_a_step_that_finds_shared_memory_taken_does_nothing():
    step = Step()
    before = memory(step.lookup), bits(step.draft)
    with held(step.lookup):
        assert call(step) == BUSY
        assert (memory(step.lookup), bits(step.draft)) == before
    want = step.expected()
    assert call(step) == OK
    assert bits(step.draft) == want


def test_shared_memory_is_taken_by_one_thread_at_a_time():
    """Threads that take it in turns, while steps run, never hold it together."""
    step, inside, most = Step(), 0, 0

    def hold() -> None:
        nonlocal inside, most
        for _ in range(200):
            with held(step.lookup):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    statuses = {call(step) for _ in range(500)}
    for thread in threads:
        thread.join()
    assert most == 1
    assert statuses <= {OK, BUSY}
    assert call(step) == OK  # nobody has it any longer


def test_no_python_runs_while_shared_memory_is_taken():
    """It would wait for the GIL, often for milliseconds, while steps find the memory taken and draft nothing."""
    step, lines = Step(3), 0
    lookup, flag = step.lookup, step.lookup.responses.flag
    lookup.remember(0, "", 0, 2)  # compile

    def trace(*_: Any) -> Any:
        nonlocal lines
        lines += 1
        assert flag[TAKEN] == 0
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        lookup.remember(0, "", 0, 300)
        lookup.load({})
        lookup.start_threads()
        lookup.clear_responses()
    finally:
        sys.settrace(before)
        lookup.close()
    assert lines > 50


def test_a_text_that_has_begun_is_as_one_that_a_step_ingested():
    """The trees' number, which a text gets in advance, changes no match."""
    talk, (plain, other) = players(1, 1)
    for slot in range(SLOTS):
        for player in (plain, other):
            player.lookup.start(slot, owner="")
        tokens = talk.lines()
        plain.step([slot], [tokens], [len(tokens)], [0])
        other.lookup.begin(slot, np.array(tokens, np.int32), CAPACITY // 2)
        assert bits(plain.fill([slot], [4])) == bits(other.fill([slot], [4]))
