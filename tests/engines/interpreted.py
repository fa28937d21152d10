"""Modules of Triton kernels in the tests' own process, with Triton's interpreter or without it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

import pytest


@contextmanager
def imported_anew(name: str, *, interpreted: bool) -> Iterator[ModuleType]:
    """Import a module anew, so that the interpreter runs its kernels or does not; within the context it is the module.

    Triton decides where a kernel is defined what will run it.  The kernels may call no function that Triton itself
    defines as a kernel, such as `tl.sum`, because Triton may have been imported without the interpreter.
    """
    package, _, last = name.rpartition(".")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
        default = ModuleType(name)
        patch.setattr(importlib.import_module(package), last, default, raising=False)
        patch.setitem(sys.modules, name, default)
        del sys.modules[name]
        yield importlib.import_module(name)


@contextmanager
def device_kernels(*, interpreted: bool) -> Iterator[ModuleType]:
    """Import the kernels around a proposer's step anew; within the context this module has their launches."""
    with ExitStack() as stack:
        names = ("begin_kernel", "finish_kernel", "launches")
        found = [
            stack.enter_context(imported_anew(f"specplug.steps.kernels.{it}", interpreted=interpreted)) for it in names
        ]
        yield found[-1]


LOOKUP = (
    "kernel_arithmetic",
    *(f"{name}_kernels" for name in ("memory", "scan", "corpus", "candidate", "draft", "tree")),
    "kernels",
)


@contextmanager
def lookup_kernels() -> Iterator[ModuleType]:
    """Import the lookup's kernels anew, interpreted, with so small blocks and few cursors that texts have several."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("specplug.lookup.layout.BLOCK", 32)
        patch.setattr("specplug.lookup.corpus_search.LOOKED_AT", 4)
        names = [f"specplug.lookup.{name}" for name in LOOKUP]
        yield [stack.enter_context(imported_anew(name, interpreted=True)) for name in names][-1]
