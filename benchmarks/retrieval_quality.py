"""Benchmark of drafts from references and corpora on recorded answers: tokens per step, without a model.

    .venv-vllm/bin/python -m benchmarks.retrieval_quality --traces DIR [--tokenizer tekken] [--json quality.json]

DIR has one or more `.jsonl` traces in the format of `specplug replay` (docs/replay.md).  The workloads `rag` (answers
from documents that occur verbatim in the prompt) and `code_edit` (a fenced file in the prompt, with instructions to
change it) are measured; the prompts of all others become distractor corpora.  Missing workloads are skipped, and the
output says so.

    rag         in the prompt        the documents stand in the prompt, and nowhere else
                nowhere              they are cut out of the prompt
                references           cut out, and references of their request
                corpus               cut out, and those of all requests are one corpus
                prompt and corpus    both
                corpus + N           as `corpus`, with N corpora of other prompts, at most 30,000 tokens each
    code_edit   in the prompt        the file stands in the prompt only
                A, reference         it is cut out, and a reference
                B, both              both

The proposers are `retrieval` and `retrieval-tree`, and the policy is `fixed`, so every step drafts as much as the
proposer offers.  Counts are exact for greedy answers and reproducible.  Documents are token ids and therefore lack the
re-tokenised prefixes of a store built from text.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import versions
from benchmarks.peers import note

if TYPE_CHECKING:
    from specplug.replay.items import Item
    from specplug.replay.setup import Setup

MODES = ("cold", "serving")
PROPOSERS = {"chain": "retrieval", "tree": "retrieval-tree"}
DISTRACTORS = (1, 4, 16, 64)
FENCE = re.compile(r"```[a-z]*\n(.*?)\n```", re.DOTALL)


@dataclass(frozen=True)
class Variant:
    """One line of the table.

    Attributes:
        workload, name: labels of the line.
        change: function applied to each recorded item.
        given: fields of `Setup`.
        distractors: number of distractor corpora.
        modes: replay modes to run.
    """

    workload: str
    name: str
    change: Callable[[Item], Item]
    given: Mapping[str, Any]
    distractors: int = 0
    modes: tuple[str, ...] = MODES


def variants(distractors: Sequence[int]) -> list[Variant]:
    """Return all lines of the table."""
    from specplug.replay.items import without_documents

    references, corpus = {"references": True}, {"corpus": True}
    found = [
        Variant("rag", "in the prompt", _as_it_is, {}),
        Variant("rag", "nowhere", without_documents, {}),
        Variant("rag", "references", without_documents, references),
        Variant("rag", "corpus", without_documents, corpus),
        Variant("rag", "prompt and corpus", _as_it_is, corpus),
    ]
    found += [
        Variant("rag", f"corpus + {count}", without_documents, corpus, count, ("serving",)) for count in distractors
    ]
    return [
        *found,
        Variant("code_edit", "in the prompt", _as_it_is, {}),
        Variant("code_edit", "A, reference", lambda item: _with_file(item, cut=True), references),
        Variant("code_edit", "B, both", lambda item: _with_file(item, cut=False), references),
    ]


def _as_it_is(item: Item) -> Item:
    return item


def _with_file(item: Item, *, cut: bool) -> Item:
    """Return an item with the text of its first fence as its only document."""
    fence = FENCE.search(item.prompt)
    if fence is None:
        return item.model_copy(update={"documents": ()})
    prompt = item.prompt[: fence.start(1)] + item.prompt[fence.end(1) :] if cut else item.prompt
    return item.model_copy(update={"prompt": prompt, "documents": (fence[1],)})


def run(options: argparse.Namespace, traces: Mapping[str, Sequence[Item]]) -> list[dict[str, Any]]:
    """Return one row per variant, mode and gamma: tau of chains and of trees."""
    from specplug.replay.corpora import distractors
    from specplug.replay.items import tokenize
    from specplug.replay.setup import Setup
    from specplug.text.loading import load_tokenizer

    loaded, rows = load_tokenizer(options.tokenizer), []
    prompts = {
        workload: [loaded.encode(item.prompt) for item in items]
        for workload, items in traces.items()
        if workload != "rag" and options.distractors
    }
    for variant in variants(options.distractors):
        if variant.workload not in traces:
            continue
        recorded = list(traces[variant.workload])[: options.limit]
        items = tokenize([variant.change(item) for item in recorded], loaded)
        setup = Setup(policy="fixed", **variant.given, distractors=distractors(prompts.values(), variant.distractors))
        for mode in variant.modes:
            if mode in options.modes:
                for gamma in options.gammas:
                    note(f"{variant.workload}, {variant.name}, {mode}, gamma {gamma}")
                    found = _taus(items, replace(setup, gamma=gamma), mode, options.shapes)
                    about = {"workload": variant.workload, "variant": variant.name, "mode": mode, "gamma": gamma}
                    rows.append({**about, **found})
    return rows


def _taus(items: Sequence[Any], setup: Setup, mode: Any, shapes: Sequence[str]) -> dict[str, Any]:
    from specplug.replay.run import replay

    found: dict[str, Any] = {}
    for shape in shapes:
        result = replay(items, replace(setup, proposer=PROPOSERS[shape], trees=shape == "tree"), mode=mode)
        if result.faults:
            sys.exit(f"no figures, because something is wrong: {result.faults}")
        found[shape] = result.counts.tau
        found[f"{shape}_us"] = result.microseconds_per_step
    return found


def judge(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, bool]]:
    """Return each target, the measured value, and whether the target is met."""
    at = {(r["workload"], r["variant"], r["mode"], r["gamma"], s): r[s] for r in rows for s in PROPOSERS if s in r}
    aims = [("rag", "references", "in the prompt", 0.98), ("code_edit", "A, reference", "B, both", 0.95)]
    aims += [("rag", f"corpus + {count}", "corpus", 0.98) for count in DISTRACTORS]
    found = []
    for workload, variant, base, least in aims:
        for (_, _, mode, gamma, shape), tau in ((k, v) for k, v in at.items() if k[:2] == (workload, variant)):
            share = tau / at[workload, base, mode, gamma, shape]
            what = f"{workload}, {mode}, gamma {gamma}, {shape}s: {variant!r} at least {least:.0%} of {base!r}"
            found.append((what, f"{share:.1%}", share >= least))
    return found


def report(rows: Sequence[Mapping[str, Any]], tokenizer: str) -> None:
    """Print the table."""
    from specplug.cli.output import print_table

    cells = [
        (
            row["workload"],
            row["variant"],
            row["mode"],
            str(row["gamma"]),
            *(f"{row[shape]:.3f}" if shape in row else "" for shape in PROPOSERS),
        )
        for row in rows
    ]
    header = ("workload", "documents, or the file", "mode", "gamma", *(f"tau, {shape}" for shape in PROPOSERS))
    print_table(f"tokens per step, the bonus token included; tokenizer {tokenizer}", header, cells)


def main() -> None:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="a .jsonl file, or a folder with some")
    parser.add_argument("--tokenizer", default="tekken", help="as `specplug replay` takes it (default: tekken)")
    parser.add_argument("--gammas", type=int, nargs="+", default=[8, 32], help="default: 8 32")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="default: both")
    parser.add_argument("--shapes", nargs="+", choices=tuple(PROPOSERS), default=list(PROPOSERS), help="default: both")
    parser.add_argument("--distractors", type=int, nargs="*", default=list(DISTRACTORS), help="default: 1 4 16 64")
    parser.add_argument("--limit", type=int, help="only the first N requests of a workload")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    options = parser.parse_args()
    if not options.traces.exists():
        sys.exit(f"skipped: there are no traces at {options.traces}")
    from specplug.replay.items import read_traces

    traces = read_traces(options.traces)
    missing = [f"{workload} is left out: there is none in the traces" for workload in ("rag", "code_edit")
               if workload not in traces]  # fmt: skip
    rows = run(options, traces)
    report(rows, options.tokenizer)
    print("\n".join(missing), end="\n" * bool(missing))
    for aim, found, met in judge(rows):
        print(f"{'met   ' if met else 'MISSED'}  {found:>7}  {aim}")
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"versions": versions("specplug"), "options": stated, "missing": missing, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
