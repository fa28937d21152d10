"""Kernels run on threads that Python does not know, without the GIL, and nothing in them can raise."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import numba
import numpy as np
import pytest
import torch

from specplug.match.cpu.entries import ENTRY_ARGUMENTS, ingest_entry, propose_entry
from specplug.match.cpu.lookup import Lookup, LookupOptions
from specplug.types.draft import Draft
from tests.match.driver import POISON
from tests.match.test_threads import CAPACITY, SLOTS, addresses_of, bits, memory, players

PYTHON = ("PyGILState", "numba_gil", "numba_unpickle", "PyErr", "PyObject", "Py_", "NRT_Allocate", "NRT_MemInfo_alloc")
"""Names, or prefixes of names, of functions that take the GIL, report exceptions, or allocate."""

RAISES = "picklebuf"
"""Part of the name of the constant that a raise statement of numba refers to."""


def ingest_callback(arguments: int) -> int:
    """Run `ingest_entry`."""
    return ingest_entry(arguments)  # type: ignore[no-any-return]


def propose_callback(arguments: int) -> int:
    """Run `propose_entry`."""
    return propose_entry(arguments)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def callbacks() -> dict[str, Any]:
    """Return the entries as C callbacks."""
    wrap = numba.cfunc("int64(int64)")
    return {"ingest": wrap(ingest_callback), "propose": wrap(propose_callback)}


@numba.njit  # type: ignore[untyped-decorator]
def raises_if(negative: int) -> int:
    """Raise an exception, as no kernel does."""
    if negative < 0:
        raise ValueError("negative")
    return negative


def test_code_that_raises_is_recognised() -> None:
    code = numba.cfunc("int64(int64)")(raises_if.py_func).inspect_llvm()
    assert RAISES in code
    assert any(name in code for name in PYTHON)


@pytest.mark.parametrize("name", ["ingest", "propose"])
def test_a_callback_has_no_way_to_python(callbacks: dict[str, Any], name: str) -> None:
    code = callbacks[name].inspect_llvm()
    assert len(code) > 100_000  # all that it calls is there
    assert [word for word in (*PYTHON, RAISES) if word in code] == []
    outside = set(re.findall(r"^declare .*?@([\w.]+)\(", code, re.MULTILINE))
    assert {word for word in outside if not word.startswith("llvm.")} <= {"NRT_MemInfo_call_dtor"}


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_foreign_thread_drafts_while_python_holds_the_gil(
    callbacks: dict[str, Any], threads: int, trees: bool
) -> None:
    talk, (plain, other) = players(1, threads, trees=trees)
    new = [talk.lines() for _ in range(SLOTS)]
    lengths = [length + len(tokens) for length, tokens in zip(talk.length, new, strict=True)]
    want = bits(plain.step(list(range(SLOTS)), new, lengths, [4] * SLOTS))
    state, draft = other.lookup.state_address(), Draft.allocate(SLOTS, 4, trees=trees)
    for tensor in (draft.token_ids, draft.source, draft.confidence, draft.parents):
        if tensor is not None:
            tensor.fill_(POISON)
    tensors = [torch.arange(SLOTS), *(torch.tensor(it, dtype=torch.int32) for it in (lengths, list(map(len, new))))]
    limits, table = torch.full((SLOTS,), 4, dtype=torch.int32), whole_table(new, lengths)
    slots, sizes, counts = (it.data_ptr() for it in tensors)
    ingest = [state, SLOTS, slots, table.data_ptr(), *table.shape, slots, 0, sizes, counts]
    propose = [state, SLOTS, *addresses_of(tensors[0], limits, draft)]
    assert call_without_python(callbacks["ingest"].address, ingest) == 0
    assert call_without_python(callbacks["propose"].address, propose) == 0
    assert bits(draft) == want
    assert memory(other.lookup) == memory(plain.lookup)


def whole_table(new: list[list[int]], lengths: list[int]) -> torch.Tensor:
    """Return a token table that holds poison but for the new tokens."""
    table = torch.full((SLOTS, CAPACITY), POISON, dtype=torch.int32)
    for row, (tokens, length) in enumerate(zip(new, lengths, strict=True)):
        table[row, length - len(tokens) : length] = torch.tensor(tokens, dtype=torch.int32)
    return table


def call_without_python(function: int, numbers: list[int]) -> int:
    """Call a function on a thread of its own, and keep the GIL until it has ended; return what it returned."""
    arguments = np.array(numbers, np.int64)
    assert arguments.size == ENTRY_ARGUMENTS
    library = ctypes.PyDLL(None)  # whose functions keep the GIL, unlike those of CDLL
    thread, result = ctypes.c_void_p(), ctypes.c_void_p()
    start = (ctypes.byref(thread), None, ctypes.c_void_p(function), ctypes.c_void_p(arguments.ctypes.data))
    assert library.pthread_create(*start) == 0
    assert library.pthread_join(thread, ctypes.byref(result)) == 0
    return result.value or 0


def test_the_type_of_a_state_is_the_same_for_all_lookups() -> None:
    lookups = [Lookup(3, 99, 7, LookupOptions(shortest=2, least=0, threads=4), trees=trees) for trees in (False, True)]
    (other,) = players(2)[1]
    assert len({numba.typeof(lookup.state) for lookup in [*lookups, other.lookup]}) == 1
