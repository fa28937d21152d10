"""Benchmark of the pauses that adding and removing corpora cause in engine steps: step times with and without, in
pairs.

    .venv/bin/python -m benchmarks.corpus_pauses [--pairs 6] [--json pauses.json]

A thread takes steps of a batch with the proposer `retrieval`, `ingest` and `propose`, then sleeps for a millisecond, as
long as an engine waits for its device.  Its texts grow by two tokens a step, and it drafts from a store of a million
tokens.  Meanwhile nothing happens; or another process adds and removes a corpus of 100,000 tokens, over and over, in
the store that the proposer watches; or another thread of the same process does, by `add_corpus` and `remove_corpus`.
The step is timed without its sleep; the wait of the sleeping thread for the interpreter afterwards ("wake-up") is timed
too, since an engine would incur it.  Quiet and busy stretches alternate, so that other load on the machine affects
both; differences are computed pair by pair.

The same run checks correctness, or no figures are printed: corpora were added and removed in every busy stretch, the
proposer saw the changes, and it drafts from the store.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.peers import note, spread

BATCH, DRAFT_LENGTH = 16, 8
LENGTH = 4096
HELD, CHANGED = 1_000_000, 100_000
VOCABULARY = 50_000
SLEEP = 0.001
POLL = 0.05
ARMS = ("another process", "another thread")
WHAT = ("step", "wake-up")


def texts(tokens: int, seed: int) -> list[Any]:
    """Return documents of a thousand tokens each, with some frequent tokens."""
    import numpy as np

    draw = np.random.default_rng(seed)
    ids = (draw.zipf(1.3, tokens) % VOCABULARY).astype(np.int32)
    return [ids[start : start + 1000] for start in range(0, tokens, 1000)]


class Steps:
    """A proposer, and a batch whose texts grow.

    Attributes:
        milliseconds: times of each step and of each wake-up.
        drafted: number of tokens drafted so far.
        seen: number of checks that found more than the permanent corpus.
    """

    def __init__(self, store: Path, stated: list[Any]) -> None:
        import numpy as np
        import torch

        from specplug.interfaces import PluginContext
        from specplug.settings.model import CorporaSettings
        from specplug.types.caps import EngineCaps
        from specplug.types.draft import Draft
        from specplug_retrieval.proposer import Retrieval

        self.proposer = Retrieval(
            PluginContext(
                EngineCaps(max_draft_length=DRAFT_LENGTH),
                vocab_size=VOCABULARY,
                max_slots=BATCH,
                max_length=LENGTH,
                sections={"corpora": CorporaSettings(store=str(store), poll_seconds=POLL)},
            )
        )
        self.proposer.warmup()
        self._table = torch.from_numpy(
            np.stack([np.concatenate(stated[row : row + 5])[:LENGTH] for row in range(BATCH)])
        )
        self._rows, self._limits = torch.arange(BATCH), torch.full((BATCH,), DRAFT_LENGTH, dtype=torch.int32)
        self._draft, self._length, self._generation = Draft.allocate(BATCH, DRAFT_LENGTH), LENGTH, 0
        self._lengths = torch.zeros(BATCH, dtype=torch.int32)
        self._same = {
            "temperature": torch.zeros(BATCH),
            "sampled": torch.ones(BATCH, dtype=torch.bool),
            "grammar": torch.zeros(BATCH, dtype=torch.bool),
            "room": torch.full((BATCH,), 1 << 20, dtype=torch.int32),
        }
        self.milliseconds: dict[str, list[float]] = {}
        self.clear()

    def clear(self) -> None:
        """Clear the times."""
        self.drafted = self.seen = 0
        self.milliseconds = {name: [] for name in WHAT}

    def run(self, seconds: float) -> None:
        """Take steps for the given time."""
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            batch = self._next()
            began = time.perf_counter()
            self.proposer.ingest(batch)
            self.proposer.propose(batch, self._limits, self._draft)
            ended = time.perf_counter()
            time.sleep(SLEEP)
            woken = time.perf_counter()
            self.milliseconds["step"].append(1e3 * (ended - began))
            self.milliseconds["wake-up"].append(1e3 * (woken - ended - SLEEP))
            self.drafted += int(self._draft.lengths.sum())
            self.seen += len(self.proposer.list_corpora()) > 1

    def _next(self) -> Any:
        """Return the next batch: two tokens more of each text, or new texts where they have ended."""
        import torch

        from specplug.types.batch import BatchView
        from specplug.types.request import Lifecycle, Request, RequestEvent

        new, resets = 2, ()
        if self._length + new > LENGTH:
            self._length, new, self._generation = 0, 64, self._generation + 1
            for slot in range(BATCH):
                request = Request(f"{slot}-{self._generation}", 1, LENGTH, isolation_key="one")
                self.proposer.on_event(RequestEvent(Lifecycle.STARTED, request, slot, self._generation))
            resets = tuple(range(BATCH))
        self._length += new
        self._lengths.fill_(self._length)
        self._draft.reset(self._lengths)
        return BatchView(
            slots=self._rows,
            rows=self._rows,
            tokens=self._table,
            lengths=self._lengths,
            num_new=torch.full((BATCH,), new, dtype=torch.int32),
            generations=torch.full((BATCH,), self._generation),
            vocab_size=VOCABULARY,
            reset_slots=resets,
            **self._same,
        )


@contextmanager
def other_process(steps: Steps, store: Path) -> Iterator[Callable[[], int]]:
    """Change the store in another process in the background; yield a function for the number of changes so far."""
    context = multiprocessing.get_context("spawn")
    ended, ready, count = context.Event(), context.Event(), context.Value("i", 0)
    process = context.Process(target=_changing, args=(store, ended, ready, count), daemon=True)
    process.start()
    ready.wait()
    before = count.value
    yield lambda: count.value - before
    ended.set()
    process.join()


def _changing(store: Path, ended: Any, ready: Any, count: Any) -> None:
    from specplug.corpus.documents import Document
    from specplug.corpus.store import Store

    opened, documents = Store.open(store), [Document(str(n), ids) for n, ids in enumerate(texts(CHANGED, 7))]
    while not ended.is_set():
        opened.add(f"process {count.value}", documents)
        ready.set()
        time.sleep(2 * POLL)  # else nobody would see it
        opened.remove(f"process {count.value}")
        opened.merge()
        count.value += 1


@contextmanager
def other_thread(steps: Steps, store: Path) -> Iterator[Callable[[], int]]:
    """Change the store in another thread, as an engine's own route does; yield a function for the number of changes."""
    documents, ended, done = texts(CHANGED, 7), threading.Event(), [0]

    def change() -> None:
        while not ended.is_set():
            name = f"thread {done[0]}"
            steps.proposer.add_corpus(name, documents)
            steps.proposer.remove_corpus(name)
            steps.proposer.settle()
            done[0] += 1

    thread = threading.Thread(target=change)
    thread.start()
    yield lambda: done[0]
    ended.set()
    thread.join()


@contextmanager
def idle(steps: Steps, store: Path) -> Iterator[Callable[[], int]]:
    """Change nothing."""
    yield lambda: 0


BUSY = dict(zip(ARMS, (other_process, other_thread), strict=True))


def stretch(steps: Steps, store: Path, arm: Any, seconds: float) -> dict[str, Any]:
    """Take steps for the given time while `arm` runs; return percentiles in milliseconds."""
    import numpy as np

    with arm(steps, store) as changes:
        steps.clear()
        steps.run(seconds)
        found: dict[str, Any] = {"changes": changes(), "seen": steps.seen, "drafted": steps.drafted}
    for name, every in steps.milliseconds.items():
        p50, p99, p999 = np.percentile(every, [50, 99, 99.9])
        found[name] = {"p50": p50, "p99": p99, "p99.9": p999, "longest": max(every), "steps": len(every)}
    return found


def run(options: argparse.Namespace, store: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per pair, and the failed checks."""
    from specplug.corpus.documents import Document
    from specplug.corpus.store import Store
    from specplug.text.fingerprint import Fingerprint

    stated = texts(HELD, 1)
    made = Store.create(store, Fingerprint("numbers", "0" * 32, VOCABULARY))
    made.add("held", [Document(str(number), ids) for number, ids in enumerate(stated)])
    steps, rows, wrong = Steps(store, stated), [], []
    for arm in ("idle", *options.arms):  # to compile, and to have every page in memory
        stretch(steps, store, BUSY.get(arm, idle), 2)
    gc.collect()
    gc.disable()
    for arm in options.arms:
        for pair in range(options.pairs):
            note(f"{arm}: pair {pair + 1} of {options.pairs}")
            row: dict[str, Any] = {"arm": arm}
            for kind in ("quiet", "busy") if pair % 2 else ("busy", "quiet"):
                row[kind] = stretch(steps, store, BUSY[arm] if kind == "busy" else idle, options.seconds)
            rows.append(row)
            if not row["busy"]["changes"] or not row["busy"]["seen"]:
                wrong.append(f"{arm}: {row['busy']['changes']} changes, seen {row['busy']['seen']} times")
            if not row["quiet"]["drafted"]:
                wrong.append(f"{arm}: nothing was drafted")
    steps.proposer.close()
    return rows, wrong


def report(rows: list[dict[str, Any]], title: str) -> None:
    """Print the tables."""
    from specplug.cli.output import print_table

    figures = ("p50", "p99", "p99.9", "longest")
    cells = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm]
        for what in WHAT:
            for figure in figures:
                quiet, busy = ([row[kind][what][figure] for row in mine] for kind in ("quiet", "busy"))
                more = [b - a for a, b in zip(quiet, busy, strict=True)]
                cells.append((arm, what, figure, *(_spread(each) for each in (quiet, busy, more))))
    print_table(title, ("who changes the store", "what", "", "quiet", "busy", "difference, pair by pair"), cells)
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [(row["quiet"][what], row["busy"][what]) for row in rows if row["arm"] == arm for what in WHAT]
        longest, more = max(busy["longest"] for _, busy in mine), spread([b["p99.9"] - a["p99.9"] for a, b in mine])
        met = "met   " if more[0] <= 5 else "MISSED"
        print(f"{met}  {more[0]:.2f} ms  {arm}: p99.9 at most 5 ms longer; the longest of all {longest:.2f} ms")


def _spread(values: list[float]) -> str:
    return "{:.2f}  ({:.2f} to {:.2f})".format(*spread(values))


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="default: both")
    parser.add_argument("--pairs", type=int, default=6, help="default: 6")
    parser.add_argument("--seconds", type=float, default=10, help="of a stretch (default: 10)")
    parser.add_argument("--folder", type=Path, help="where the store is; by default the temporary folder")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows, wrong = run(options, Path(folder) / "store")
    where = machine()
    if options.json is not None:
        stated = {key: str(value) for key, value in vars(options).items()}
        everything = {"machine": where, "versions": versions("numba", "torch", "specplug"), "options": stated}
        options.json.write_text(json.dumps({**everything, "wrong": wrong, "rows": rows}, indent=2) + "\n")
    if wrong:
        sys.exit("\n".join(["no figures, because something is wrong:", *wrong]))
    report(rows, f"{where['cpu']}, {where['cores']} cores; batch {BATCH}; ms, median over pairs (least to most)")


if __name__ == "__main__":
    main()
