"""Report of `benchmarks.corpus_cost`: tables and ratios."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.peers import spread

OURS, SGLANG = "specplug", "SGLang"


def report(found: dict[str, Any], title: str) -> None:
    """Print the tables."""
    from specplug.tools.cli.output import print_table

    print_table(title, ("building", "found"), _building(found))
    print_table("MB that one of two processes holds more than before", _MEMORY, _memory(found))
    print_table("microseconds of a query for the whole batch", ("contexts", "batch", *_QUERIES), _queries(found))
    print_table("microseconds of a query, other files' contexts", _CORPORA, _corpora(found))
    print(found["left_out"], end="\n" * bool(found["left_out"]))


def _building(found: dict[str, Any]) -> list[tuple[str, str]]:
    build, theirs = found["build"], found.get("sglang")
    rows = [
        ("tokens, in documents", f"{build['tokens']}, {build['documents']}"),
        ("tokenising, prefixes included", _per_second(build["tokenising"])),
        ("sorting alone", _per_second(build["sorting"])),
        ("adding: checking, sorting, hashing, writing, fsync", _per_second(build["adding"])),
        ("verifying", f"{build['verify_seconds']:.1f} s"),
        ("bytes a token on disk", f"{build['bytes_per_token']:.2f}"),
    ]
    rows += [(name, f"{_most(found, key):.1f} ms") for name, key in _LOADS]
    if theirs:
        rows += [
            ("SGLang: loading tokens", _per_second(theirs["adding"])),
            ("SGLang: bytes a token in memory", f"{1e6 * theirs['memory']['anonymous'] / build['tokens']:.0f}"),
        ]
    return rows


_LOADS = (
    ("opening the store for the first time", "opening_first"),
    ("opening it once more", "opening"),
    ("having it searched, between two steps", "stocking"),
)
_KINDS = ("rss", "pss", "private", "shared", "anonymous")
_MEMORY = ("", "resident", "its share (PSS)", "private", "shared", "anonymous")
_QUERIES = (f"{OURS} p50", "p99", f"{SGLANG} p50", "p99", f"{SGLANG} / ours")
_CORPORA = ("corpora", "segments", "batch", "p50", "p99")


def _most(found: dict[str, Any], key: str) -> float:
    return float(max(one[key] for one in found["readers"]))


def _per_second(tokens: float) -> str:
    return f"{tokens / 1e6:.2f} M tokens/s"


def _memory(found: dict[str, Any]) -> list[tuple[str, ...]]:
    names = {"opened": "opened", "after few": "after 1,000 queries", "after many": "after all queries"}
    return [
        (stated, *(f"{statistics.mean(one[key][kind] for one in found['readers']):.1f}" for kind in _KINDS))
        for key, stated in names.items()
    ]


def _queries(found: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for row in found["queries"]:
        ours, theirs = row["arms"][OURS], row["arms"].get(SGLANG)
        cells = [f"{ours['p50']:.1f}", f"{ours['p99']:.1f}"]
        if theirs:
            ratios = [b / a for a, b in zip(ours["rounds"], theirs["rounds"], strict=True)]
            cells += [f"{theirs['p50']:.1f}", f"{theirs['p99']:.1f}"]
            cells.append("{:.1f}  ({:.1f} to {:.1f})".format(*spread(ratios)))
        else:
            cells += [""] * 3
        rows.append((row["contexts"], str(row["batch"]), *cells))
    return rows


def _corpora(found: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for row in found["corpora"]:
        for one in row["rows"]:
            ours = one["arms"][OURS]
            times = f"{ours['p50']:.1f}", f"{ours['p99']:.1f}"
            rows.append((str(row["corpora"]), str(row["segments"]), str(one["batch"]), *times))
    return rows
