"""Benchmark of `crosstok`: draft models of another tokenizer beside those of the target's, on the transformers engine.

    .venv/bin/python -m benchmarks.cross_tokenizer [--tasks 6] [--same DIR ...] [--other DIR ...] [--json cross.json]

It reports tokens per target step and acceptance, greedy and at temperature 1, of a draft model of the target's
tokenizer, and of each route of one of another; for the shipped pair, and for the pairs of --same and --other, which are
folders of the same number of models, compared in order.  All arms answer held-out tasks of the four kinds
(`specplug.tools.demo.tasks`) with the shipped target in float32 on a CPU, with the policy "fixed", 5 draft tokens and
no limit of time.

These commands train a pair of which only the tokenizers differ, not the sizes of the layers, the texts and the number
of steps; the other tokenizer has 1.475 times as many tokens in a text:

    models=specplug/tools/demo/models
    train="python examples/models/train.py draft --threads 1 --state /tmp/state --seed 1"
    $train --tokens 2_400_000 --tokenizer $models/tiny --output /tmp/same-1
    $train --tokens 3_540_000 --batch-tokens 3776 --tokenizer $models/tiny-draft-other --output /tmp/other-1

Greedy outputs are compared with those of plain decoding in the same run; if one differs other than at a near tie of
logits, the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.cross_engine import GAMMA, PLAIN, Answers, Check, answer, prompts_of, serving, settings, tasks_of
from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from specplug.tools.cli.output import print_table
from specplug.tools.demo.tasks import KINDS, Task

SHIPPED = ("tiny-draft", "tiny-draft-other")
SAME = "the target's tokenizer"
ROUTES = ("slem", "tli", "auto")
HEATS = (0.0, 1.0)

Pairs = list[tuple[str, str]]


def _set_quiet() -> None:
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


def taus(given: argparse.Namespace, check: Check) -> list[dict[str, Any]]:
    """Return one row for each pair, temperature and arm: its figures."""
    tasks = tasks_of(given.tasks, given.seed)
    prompts = prompts_of(tasks)
    with serving(PLAIN, given.batch) as engine:
        expected = answer(engine, prompts).token_ids
    pairs: dict[str, Pairs] = {"shipped": [SHIPPED], "trained alike": list(zip(given.same, given.other, strict=True))}
    rows = []
    for group, members in pairs.items():
        for number, (same, other) in enumerate(members):
            arms = {SAME: (same, "auto"), **{route: (other, route) for route in ROUTES}}
            for heat in HEATS:
                note(f"tau: {group} {number + 1} of {len(members)}, temperature {heat:g}")
                found = {}
                for name, arm in arms.items():
                    with serving(settings(*arm), given.batch) as engine:
                        found[name] = answer(engine, prompts, heat)
                for name, mine in found.items():
                    if not heat:
                        check.compare(prompts, expected, mine.token_ids)
                    row = {"pairs": group, "number": number, "temperature": heat, "arm": name}
                    rows.append({**row, "to_same": mine.tau / found[SAME].tau, **_figures(tasks, mine)})
    return rows


def _figures(tasks: Sequence[Task], mine: Answers) -> dict[str, Any]:
    """Return the figures of all tasks, and tau of each kind."""
    kinds = {}
    for kind in KINDS:
        of_kind = [
            (ids, n) for task, ids, n in zip(tasks, mine.token_ids, mine.steps, strict=True) if task.kind == kind
        ]
        kinds[kind] = sum(len(ids) for ids, _ in of_kind) / sum(steps for _, steps in of_kind)
    return {**mine.figures(), "tau_by_kind": kinds}


def show_taus(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table for each group of pairs: means over its pairs, and the least and the most."""
    for group in dict.fromkeys(row["pairs"] for row in rows):
        mine = [row for row in rows if row["pairs"] == group]
        count = len({row["number"] for row in mine})
        cells = []
        for heat in HEATS:
            for arm in (SAME, *ROUTES):
                of_arm = [row for row in mine if row["temperature"] == heat and row["arm"] == arm]
                cells.append(
                    (
                        f"{heat:g}",
                        arm,
                        *(f"{statistics.mean(row['tau_by_kind'][kind] for row in of_arm):.2f}" for kind in KINDS),
                        spread([row["tau"] for row in of_arm]),
                        spread([row["accepted_of_tested"] for row in of_arm]),
                        spread([row["accepted_of_drafted"] for row in of_arm]),
                        spread([row["to_same"] for row in of_arm]),
                    )
                )
        header = ("temperature", "arm", *KINDS, "tau, all", "accepted of tested", "accepted of drafted", "tau to same")
        print_table(f"{group}: {count} pair{'s' * (count > 1)}, K = {GAMMA}", header, cells)


def spread(values: Sequence[float]) -> str:
    """Return a mean, with the least and the most if there are several values."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", nargs="+", default=[], help="draft models of the target's tokenizer")
    parser.add_argument("--other", nargs="+", default=[], help="draft models of another tokenizer, as many")
    parser.add_argument("--tasks", type=int, default=6, help="tasks of each kind (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    given = parser.parse_args()
    if len(given.same) != len(given.other):
        parser.error("--same and --other need the same number of folders")
    return given


def main() -> None:
    """Run the benchmark and print the results."""
    given, check = options(), Check()
    torch.set_num_threads(1)
    _set_quiet()
    where, used = machine(), versions("transformers", "torch", "specplug")
    print(f"{in_words(where, 1)}; transformers {used['transformers']}")
    rows = taus(given, check)
    show_taus(rows)
    print(check)
    if given.json:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}
        everything = {"machine": where, "versions": used, "options": stated, "check": vars(check), "rows": rows}
        given.json.write_text(json.dumps(everything, indent=1) + "\n")
    if check.failures:
        sys.exit("outputs differ from those of plain decoding")


if __name__ == "__main__":
    main()
