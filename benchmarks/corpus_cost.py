"""Benchmark of the corpus store: time to build and open it, memory, and query time against SGLang's suffix automaton.

    make setup-sglang
    .venv-sglang/bin/python -m benchmarks.corpus_cost [--tokens 10000000] [--tokenizer tiny] [--json cost.json]

The corpus consists of the sources and documentation of the installed Python packages, one document per file.  One file
in fifty is held out; contexts are random positions of the corpus itself, where matches are long, and of the held-out
files, where they are short.  Both arms get the same contexts, in turns of a few hundred queries, in one process on one
thread, with the garbage collector off; ratios are computed turn by turn.  specplug's query is the kernel that its
proposer calls: the 16 best matches over up to 64 tokens.  SGLang's is `batch_get`, which compares up to 18 tokens and
makes a draft; the smallest draft, one token, is requested, and this corpus is all that it holds.

The store is verified, or no figures are printed; tests/lookup and tests/corpus check what the search finds.

Further measurements are the memory of two processes that have the store open, before and after queries, and the time of
a query with up to 64 corpora, in the segments to which their additions were merged.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.corpus_text import Texts, installed, read
from benchmarks.machine import machine, one_core, versions
from benchmarks.peers import note

if TYPE_CHECKING:
    from benchmarks.corpus_arms import Contexts, Ours, Theirs
    from specplug.corpus.documents import Document

BATCHES = (1, 64)
CORPORA = (1, 4, 16, 64)
CORPUS_TOKENS = 100_000
BYTES_OF_SGLANG = 600  # a token, at most, to know beforehand whether it fits


def build(texts: Texts, root: Path) -> dict[str, Any]:
    """Build a store; return tokens per second and bytes per token."""
    import numpy as np

    from specplug.corpus.sorting import sorted_places
    from specplug.corpus.store import Store
    from specplug.corpus.view import View

    sorted_places(np.array([-1, 1, 2, 1, 2, -1], np.int32))
    began = time.perf_counter()
    store = Store.create(root, texts.tokenizer)
    added = store.add("all", texts.documents)
    adding = time.perf_counter() - began
    began = time.perf_counter()
    problems = store.verify()
    verifying = time.perf_counter() - began
    text = View(root, None).snapshot.tenants[""][0].text.copy()
    began = time.perf_counter()
    sorted_places(text)
    sorting = time.perf_counter() - began
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    return {
        "tokens": texts.tokens,
        "documents": added.documents,
        "tokenising": texts.tokens / texts.seconds,
        "sorting": text.size / sorting,
        "adding": texts.tokens / adding,
        "verify_seconds": verifying,
        "bytes_per_token": size / texts.tokens,
        "problems": [str(problem) for problem in problems],
    }


def ask(
    arms: Sequence[Ours | Theirs], requested: dict[str, Contexts], rounds: int, queries: int
) -> list[dict[str, Any]]:
    """Return a row per kind of context and batch size: microseconds per query of each arm."""
    import numpy as np

    rows = []
    for kind, them in requested.items():
        for batch in BATCHES:
            steps = max(10, queries // batch)
            found: dict[str, list[list[float]]] = {arm.name: [] for arm in arms}
            for number in range(rounds):
                order = arms if number % 2 else arms[::-1]
                first = number * steps * batch
                for arm in order:
                    ready = [
                        arm.prepare(them, slice(first + step * batch, first + (step + 1) * batch))
                        for step in range(steps)
                    ]
                    found[arm.name].append([_microseconds(arm, one) for one in ready])
            row: dict[str, Any] = {"contexts": kind, "batch": batch, "arms": {}}
            for arm in arms:
                every = np.array(found[arm.name])
                row["arms"][arm.name] = {
                    "p50": float(np.percentile(every, 50)),
                    "p99": float(np.percentile(every, 99)),
                    "rounds": np.median(every, 1).tolist(),
                }
            rows.append(row)
    return rows


def _cut(documents: Sequence[Document]) -> Iterator[list[Document]]:
    """Yield groups of documents of at least `CORPUS_TOKENS`, up to the largest number in `CORPORA`."""
    given, tokens, left = [], 0, max(CORPORA)
    for document in documents:
        given.append(document)
        tokens += document.token_ids.size
        if tokens >= CORPUS_TOKENS and left:
            yield given
            given, tokens, left = [], 0, left - 1


def _microseconds(arm: Ours | Theirs, prepared: Any) -> float:
    arm.place(prepared)
    began = time.perf_counter_ns()
    arm.ask()
    return (time.perf_counter_ns() - began) / 1e3


def many_corpora(texts: Texts, external: Contexts, root: Path, rounds: int, queries: int) -> list[dict[str, Any]]:
    """Return a row per number of corpora: their segments, and microseconds per query."""
    from benchmarks.corpus_arms import Ours, searched
    from specplug.corpus.store import Store
    from specplug.corpus.view import View

    store, rows = Store.create(root, texts.tokenizer), []
    for number, given in enumerate(_cut(texts.documents)):
        store.add(f"corpus {number}", given)
        if number + 1 not in CORPORA:
            continue
        segments = View(root, None).snapshot.tenants[""]
        found = ask([Ours([searched(each) for each in segments])], {"other files": external}, rounds, queries)
        rows.append({"corpora": number + 1, "segments": len(segments), "rows": found})
    return rows


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all results."""
    import numpy as np

    from benchmarks.corpus_arms import Ours, Theirs, contexts, memory, searched
    from benchmarks.corpus_memory import readers
    from specplug.corpus.view import View

    note("reading and tokenising")
    texts = read(options.tokens, options.tokenizer, options.roots or installed())
    note(f"building: {texts.tokens} tokens")
    found: dict[str, Any] = {"build": build(texts, folder / "store")}
    live = View(folder / "store", None).snapshot.tenants[""]
    ours, count = Ours([searched(each) for each in live]), options.rounds * max(options.queries, 10 * max(BATCHES))
    requested = {
        "the corpus": contexts(live[0].text.copy(), count, 1),
        "other files": contexts(texts.external, count, 2),
    }
    note("opening it in two processes")
    prepared = [ours.prepare(each, slice(count)) for each in requested.values()]
    found["readers"] = readers(folder / "store", np.concatenate(prepared))
    arms: list[Any] = [ours]
    found["left_out"] = _why_not(texts.tokens)
    if not found["left_out"]:
        note("SGLang: loading")
        before = memory()
        arms.append(Theirs(texts.documents))
        held = {key: value - before[key] for key, value in memory().items()}
        found["sglang"] = {"adding": texts.tokens / arms[1].seconds, "memory": held, "tokens": arms[1].tokens}
    note("asking")
    gc.collect()
    gc.disable()
    found["queries"] = ask(arms, requested, options.rounds, options.queries)
    note("many corpora")
    found["corpora"] = many_corpora(texts, requested["other files"], folder / "many", options.rounds, options.queries)
    gc.enable()
    return found


def _why_not(tokens: int) -> str:
    """Return the reason why SGLang is left out, if it is."""
    if importlib.util.find_spec("sglang") is None:
        return "SGLang is left out: `sglang` is not installed; try: make setup-sglang"
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    needed = tokens * BYTES_OF_SGLANG
    if needed > 0.8 * free:
        return f"SGLang is left out: it may take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    return ""


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000, help="of the corpus, at least (default: 10000000)")
    parser.add_argument("--tokenizer", default="tiny", help="as `specplug replay` takes it (default: tiny)")
    parser.add_argument("--roots", type=Path, nargs="+", help="folders with texts; by default what is installed here")
    parser.add_argument("--rounds", type=int, default=10, help="default: 10")
    parser.add_argument("--queries", type=int, default=1000, help="contexts of a round (default: 1000)")
    parser.add_argument("--folder", type=Path, help="where stores are built; by default the temporary folder")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    where = machine()
    one_core()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = run(options, Path(folder))
    used = versions("sglang", "numba", "specplug")
    if options.json is not None:
        stated = {key: str(value) for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, **found}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if wrong := found["build"]["problems"]:
        sys.exit("\n".join(["no figures, because the store is broken:", *wrong]))
    from benchmarks.corpus_report import report

    names = ", ".join(f"{name} {version}" for name, version in used.items() if version)
    report(found, f"{where['cpu']}, {where['cores']} cores, one thread; tokenizer {options.tokenizer}; {names}")


if __name__ == "__main__":
    main()
