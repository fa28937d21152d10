"""Measurement of the time to open a store, and of the memory that opening it and drafting from it add to a server."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any

READERS, BATCH = 2, 64

FEW = 1000
"""Queries before the first memory measurement."""


def readers(root: Path, contexts: Any, seconds: float = 300) -> list[dict[str, Any]]:
    """Open a store in two processes at once, search it in both, and return the measurements of each.

    The store's pages are dropped from memory first, if the system supports that.

    Args:
        root: the store's folder.
        contexts: [n, 64] int32, the contexts to search for.
        seconds: timeout.
    """
    _drop(root)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(READERS), context.Queue()
    given = (root, contexts, barrier, answers)
    processes = [context.Process(target=_reader, args=given, daemon=True) for _ in range(READERS)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=seconds) for _ in processes]
    for process in processes:
        process.join()
    return found


def _reader(root: Path, contexts: Any, barrier: Any, answers: Any) -> None:
    from benchmarks.corpus_arms import Ours, memory, searched
    from specplug.corpus.view import View

    ours, times = Ours([]), []
    ours.place(contexts[:1])
    ours.ask()  # loads the kernels, which are no part of a store's memory
    barrier.wait()
    before = memory()
    for number in range(11):
        began = time.perf_counter()
        view = View(root, None)
        between = time.perf_counter()
        ours.load([searched(live) for live in view.snapshot.tenants[""]])
        times.append((1e3 * (between - began), 1e3 * (time.perf_counter() - between)))
        if number == 0:
            opened = memory()
    found: dict[str, Any] = {"opening_first": times[0][0], "opened": _more(before, opened)}
    found["opening"], found["stocking"] = (statistics.median(each) for each in zip(*times[1:], strict=True))
    for name, count in (("after few", FEW), ("after many", len(contexts))):
        for first in range(0, count, BATCH):
            ours.place(contexts[first : first + BATCH])
            ours.ask()
        barrier.wait()
        found[name] = _more(before, memory())
        barrier.wait()
    answers.put(found)


def _more(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {key: value - before[key] for key, value in after.items()}


def _drop(root: Path) -> None:
    for path in root.rglob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
