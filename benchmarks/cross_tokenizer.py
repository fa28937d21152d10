"""Benchmark of `crosstok`: draft models of another tokenizer beside those of the target's, on the transformers engine.

    .venv/bin/python -m benchmarks.cross_tokenizer [--parts tau masked universal batches forms] [--tasks 6]
        [--same DIR ...] [--other DIR ...] [--json cross.json]

All parts answer held-out tasks of the four kinds (`specplug.demo.tasks`) with the shipped target in float32 on a CPU,
with the policy "fixed", 5 draft tokens and no limit of time.

    tau        tokens per target step and acceptance, greedy and at temperature 1: a draft model of the target's
               tokenizer, and each route of one of another; for the shipped pair, and for the pairs of --same and
               --other, which are folders of the same number of models, compared in order
    masked     acceptance at temperature 1 when the vocabularies have 90, 80 and 70 % in common, beside what drafts
               from the common ids can reach; see `benchmarks.cross_masked`
    universal  tokens per target step and per second beside transformers' assisted generation, one prompt at a time;
               see `benchmarks.cross_universal`
    batches    tokens per second of 1, 8 and 32 requests at a time
    forms      tokens per target step and per second as on a GPU, where tables take the tokenizers' place, beside those
               on the host; see `benchmarks.cross_device`

These commands train a pair of which only the tokenizers differ, not the sizes of the layers, the texts and the number
of steps; the other tokenizer has 1.475 times as many tokens in a text:

    models=specplug/demo/models
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

from benchmarks import cross_device, cross_masked, cross_universal
from benchmarks.cross_engine import GAMMA, PLAIN, Answers, Check, answer, prompts_of, serving, settings, tasks_of
from benchmarks.machine import in_words, machine, versions
from benchmarks.peers import note
from specplug.cli.output import print_table
from specplug.demo.tasks import CODE, KINDS, Task, make_tasks

PARTS = ("tau", "masked", "universal", "batches", "forms")
SHIPPED = ("tiny-draft", "tiny-draft-other")
SAME = "the target's tokenizer"
ROUTES = ("slem", "tli", "auto")
HEATS = (0.0, 1.0)

Pairs = list[tuple[str, str]]


def _set_quiet() -> None:
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()


# -- tokens per step -------------------------------------------------------------------------------------------------


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


# -- the other parts -------------------------------------------------------------------------------------------------


def masked(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of `benchmarks.cross_masked`."""
    prompts = prompts_of(tasks_of(given.masked_tasks, given.seed))
    runs = [(cross_masked.ORDERS[0], 100, "tli"), (cross_masked.ORDERS[0], 100, "slem")]
    runs += [
        (order, percent, route)
        for order in cross_masked.ORDERS
        for percent in cross_masked.SHARES
        for route in ("tli", "auto")
    ]
    rows = []
    for order, percent, route in runs:
        note(f"masked: {order}, {percent} %, {route}")
        rows.append(cross_masked.measured(prompts, order, percent, route, given.batch))
    return rows


def show_masked(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""

    def share(pair: tuple[float, float]) -> str:
        return f"{pair[0]:.3f} ± {pair[1]:.3f}"

    cells = [
        (
            row["masked"],
            f"{row['common_percent']:.0f} %",
            row["route"],
            f"{row['tau']:.2f}",
            str(row["decided"]),
            f"{row['accepted']:.3f}",
            " ".join(f"{it:.2f}" for it in row["accepted_by_position"]),
            f"{row['reachable']:.3f}" if "reachable" in row else "",
            share(row["of_reachable"]) if "reachable" in row else "",
            " ".join(f"{it[0]:.2f}" for it in row["of_reachable_by_position"]) if "reachable" in row else "",
        )
        for row in rows
    ]
    header = ("masked", "common", "route", "tau", "decided", "accepted", "by position")
    print_table(
        f"Drafts of {SAME}, masked; temperature 1, K = {GAMMA}",
        (*header, "reachable", "of it", "by position"),
        cells,
    )


def universal(given: argparse.Namespace, check: Check) -> list[dict[str, Any]]:
    """Return the rates beside `generate`, of tasks, and of code without the marker before it."""
    bare = [task.prompt.replace(CODE, "") for task in make_tasks("code", "held-out", given.rate_tasks, given.seed)]
    texts = {"tasks": prompts_of(tasks_of(given.rate_tasks, given.seed))}
    texts["code without markers"] = [cross_universal.tokenizer()(text).input_ids for text in bare]
    rows = []
    for name, prompts in texts.items():
        for heat in HEATS:
            note(f"universal: {name}, temperature {heat:g}")
            found = cross_universal.side_by_side(prompts, SHIPPED[1], check, heat)
            rows += [{"texts": name, **row} for row in found]
    return rows


def show_universal(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    cells = [
        (
            row["texts"],
            f"{row['temperature']:g}",
            row["arm"],
            f"{row['tau']:.2f}",
            f"{row['tokens_per_second']:.0f}",
            "" if row["identical"] is None else f"{row['identical']} of {row['tasks']}",
            "" if row["excess"] is None else "{:.2f} ± {:.2f}".format(*row["excess"]),
        )
        for row in rows
    ]
    header = ("texts", "temperature", "arm", "tau", "tokens/s", "identical to generate", "-log p - H")
    print_table(f"One request at a time, {SHIPPED[1]}, K = {GAMMA}", header, cells)


def show_batches(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    names = ("tokens_per_second", "to_batch_1", "to_no_drafts")
    cells = [
        (row["arm"], str(row["batch"]), f"{row['tau']:.2f}", *(cross_universal.middle(row[name]) for name in names))
        for row in rows
    ]
    header = ("arm", "batch", "tau", "tokens/s", "to batch 1", "to no drafts")
    print_table(f"Batches, {SHIPPED[1]}, K = {GAMMA}", header, cells)


def show_forms(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table of the forms."""
    rates = {(row["draft"], row["route"], row["temperature"]): row for row in rows if row["form"] == cross_device.HOST}
    cells = []
    for row in rows:
        host = rates[row["draft"], row["route"], row["temperature"]]
        rate, of_host = (it["tokens"] / it["seconds"] for it in (row, host))
        cells.append(
            (
                row["draft"],
                row["route"],
                f"{row['temperature']:g}",
                row["form"],
                f"{row['tau']:.2f}",
                f"{row['accepted_of_tested']:.3f}",
                f"{row['to_host']:.3f}",
                f"{rate / of_host:.2f}",
            )
        )
    header = ("draft", "route", "temperature", "form", "tau", "accepted of tested", "tau to host", "rate to host")
    print_table(f"forms, K = {GAMMA}", header, cells)


# -- the command -----------------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--same", nargs="+", default=[], help="draft models of the target's tokenizer")
    parser.add_argument("--other", nargs="+", default=[], help="draft models of another tokenizer, as many")
    parser.add_argument("--tasks", type=int, default=6, help="tasks of each kind (default: %(default)s)")
    parser.add_argument("--masked-tasks", type=int, default=12, help="the same, for masked (default: %(default)s)")
    parser.add_argument("--rate-tasks", type=int, default=3, help="the same, for universal (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="requests at a time, but for rates")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of batches (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    given = parser.parse_args()
    if len(given.same) != len(given.other):
        parser.error("--same and --other need the same number of folders")
    return given


def main() -> None:
    """Run the benchmark and print the results."""
    given, check, found = options(), Check(), {}
    torch.set_num_threads(1)
    _set_quiet()
    where, used = machine(), versions("transformers", "torch", "specplug")
    print(f"{in_words(where, 1)}; transformers {used['transformers']}")
    if "tau" in given.parts:
        found["tau"] = taus(given, check)
        show_taus(found["tau"])
    if "masked" in given.parts:
        found["masked"] = masked(given)
        show_masked(found["masked"])
    if "universal" in given.parts:
        found["universal"] = universal(given, check)
        show_universal(found["universal"])
    if "batches" in given.parts:
        prompts = prompts_of(tasks_of(8, given.seed))
        found["batches"] = cross_universal.batches(prompts, SHIPPED[1], given.rounds, check)
        show_batches(found["batches"])
    if "forms" in given.parts:
        arms = [(SHIPPED[0], "auto", 0.0), *((SHIPPED[1], route, 0.0) for route in ("slem", "tli"))]
        arms += [(draft, "auto", 1.0) for draft in SHIPPED]
        prompts = prompts_of(tasks_of(given.tasks, given.seed))
        found["forms"] = cross_device.forms(prompts, arms, given.rounds, check)
        show_forms(found["forms"])
    print(check)
    if given.json:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}
        everything = {"machine": where, "versions": used, "options": stated, "check": vars(check), **found}
        given.json.write_text(json.dumps(everything, indent=1) + "\n")
    if check.failures:
        sys.exit("outputs differ from those of plain decoding")


if __name__ == "__main__":
    main()
