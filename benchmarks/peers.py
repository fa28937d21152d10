"""Shared parts of the benchmarks against engines' own speculation: arms in separate processes, and rounds of tasks.

All arms answer the same edit and quote tasks, made from files that the model was not trained on; the arms take turns
task by task, in a rotating order.  Each round has its own tasks, so no arm sees a prompt twice.  If an arm's tokens
differ from those without speculation, no ratio is printed and the exit code is 1.  specplug is compared with each other
arm round by round, too: the median ratio, with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import in_words, machine, versions

BASELINE = "no speculation"
KINDS = ("edit", "quote")
MAX_TOKENS = 400
Spread = tuple[float, float, float]  # median, least, most


@dataclass
class Answers:
    """Results of one arm in one round."""

    token_ids: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        """Return the number of output tokens."""
        return sum(map(len, self.token_ids))

    @property
    def rate(self) -> float:
        """Return the output tokens per second."""
        return self.tokens / self.seconds

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add one task's result."""
        self.token_ids += answer["token_ids"]
        self.texts += answer["texts"]
        for name in ("seconds", "steps", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + answer[name])


def run(
    options: argparse.Namespace, chosen: Mapping[str, Any], kind: type[Any], answer: Callable[..., dict[str, Any]]
) -> tuple[dict[str, list[Answers]], list[list[Any]]]:
    """Return each arm's rounds, and the tasks of each round.

    Args:
        options: the parsed arguments of `arguments`.
        chosen: the configuration of every arm by name, including `BASELINE`.
        kind: the kind of engine process that hosts an arm.
        answer: function to run in an arm's process; `Answers.add` takes its result.
    """
    from specplug.demo.tasks import make_tasks
    from tests.engines.engines import Pool

    rounds = [
        [task for kind in KINDS for task in make_tasks(kind, "held-out", options.tasks, seed)]  # type: ignore[arg-type]
        for seed in range(options.rounds + 1)
    ]
    found: dict[str, list[Answers]] = {name: [] for name in chosen}
    with tempfile.TemporaryDirectory() as logs:
        pool = Pool(Path(logs), most=len(chosen))
        try:
            engines = {name: pool.tenant(kind, name.split("(")[0].replace(" ", "-"), c) for name, c in chosen.items()}
            for name, engine in engines.items():  # the last round's tasks warm up
                note(f"starting: {name}")
                _ask(engine, answer, rounds[-1][:4])
            for number, tasks in enumerate(rounds[:-1]):
                note(f"round {number + 1} of {options.rounds}: {len(tasks)} tasks, {len(engines)} arms")
                for name, answers in _round(engines, answer, tasks, options.batch, number).items():
                    found[name].append(answers)
        finally:
            pool.close()
    return found, rounds[:-1]


def _round(
    engines: Mapping[str, Any], answer: Callable[..., Any], tasks: Sequence[Any], batch: int, number: int
) -> dict[str, Answers]:
    answers = {name: Answers() for name in engines}
    names = list(engines)
    for first in range(0, len(tasks), batch):
        turn = (number + first // batch) % len(names)
        for name in names[turn:] + names[:turn]:
            answers[name].add(_ask(engines[name], answer, tasks[first : first + batch]))
    return answers


def _ask(engine: Any, answer: Callable[..., Any], tasks: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = engine.call(answer, prompts=[task.prompt for task in tasks], max_tokens=MAX_TOKENS)
    return found


def summarise(found: Mapping[str, Sequence[Answers]], rounds: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return one row per arm, without a ratio if its tokens differ from those without speculation."""
    from specplug.demo.loops import loop_mask

    base, rows = found[BASELINE], []
    ours = next(mine for name, mine in found.items() if name.startswith("specplug"))
    for name, mine in found.items():
        ids = [one for answers in mine for one in answers.token_ids]
        same = [a == b for x, y in zip(mine, base, strict=True) for a, b in zip(x.token_ids, y.token_ids, strict=True)]
        right = [
            task.is_correct(text)
            for answers, tasks in zip(mine, rounds, strict=True)
            for task, text in zip(tasks, answers.texts, strict=True)
        ]
        drafted, tokens = sum(a.drafted for a in mine), sum(a.tokens for a in mine)
        rows.append(
            {
                "arm": name,
                "tokens": tokens,
                "tokens_per_second": spread([answers.rate for answers in mine]),
                "ratio": spread(paired(mine, base)) if all(same) else None,
                "specplug": interval(paired(ours, mine)) if all(same) and mine is not ours else None,
                "tau": tokens / sum(a.steps for a in mine),
                "drafted": drafted,
                "acceptance_rate": sum(a.accepted for a in mine) / drafted if drafted else None,
                "identical": sum(same),
                "tasks": len(same),
                "correct": sum(map(bool, right)),
                "loop_share": sum(sum(loop_mask(one)) for one in ids) / tokens,
            }
        )
    return rows


def spread(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum."""
    return statistics.median(values), min(values), max(values)


def paired(mine: Sequence[Answers], others: Sequence[Answers]) -> list[float]:
    """Return the ratio of two arms' rates in each round."""
    return [one.rate / other.rate for one, other in zip(mine, others, strict=True)]


def interval(ratios: Sequence[float]) -> Spread:
    """Return the median and the ends of its 95 % bootstrap interval."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[49], medians[1949]


def table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print the rows."""
    from specplug.cli.output import print_table

    header = (
        "arm",
        "tokens/s",
        "ratio",
        "specplug to it",
        "tau",
        "drafted",
        "accepted",
        "identical",
        "correct",
        "in loops",
    )
    cells = [
        (
            row["arm"],
            "{:.0f}  ({:.0f} to {:.0f})".format(*row["tokens_per_second"]),
            "outputs differ" if row["ratio"] is None else "{:.2f}  ({:.2f} to {:.2f})".format(*row["ratio"]),
            "" if row["specplug"] is None else "{:.2f}  ({:.2f} to {:.2f})".format(*row["specplug"]),
            f"{row['tau']:.2f}",
            str(row["drafted"]),
            "none" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}",
            f"{row['identical']} of {row['tasks']}",
            f"{row['correct']} of {row['tasks']}",
            f"{row['loop_share']:.0%}",
        )
        for row in rows
    ]
    print_table(title, header, cells)


def note(text: str) -> None:
    """Print the run's progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments that these benchmarks share."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=8, help="tasks of each kind and round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with its own tasks (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="tasks served together (default: %(default)s)")
    parser.add_argument("--draft-length", type=int, default=8, help="draft tokens per step (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write everything to this file, too")
    return parser


def report(
    options: argparse.Namespace,
    found: Mapping[str, Sequence[Answers]],
    rounds: Sequence[Sequence[Any]],
    engine: str,
    packages: Sequence[str],
) -> None:
    """Print and write the results, and check them.

    Args:
        engine: the engine's package and configuration, for the title; "{}" stands for the version.
        packages: packages whose versions are recorded, the engine's first.
    """
    rows, where, used = summarise(found, rounds), machine(), versions(*packages)
    name = engine.format(used[packages[0]])
    table(rows, f"{in_words(where, 1)}; {name}, batch {options.batch}, K = {options.draft_length}")
    print(
        "Median over the rounds (least to most); the ratio is to no speculation, round by round.  Those of specplug to "
        "each other arm have a 95 % interval.  Edit and quote tasks."
    )
    if options.json is not None:
        stated = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        everything = {"machine": where, "versions": used, "options": stated, "rows": rows}
        options.json.write_text(json.dumps(everything, indent=2) + "\n")
    if any(row["identical"] < row["tasks"] for row in rows):
        sys.exit("outputs differ from those without speculation")
