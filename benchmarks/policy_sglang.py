"""Tokens per step of policies on SGLang, beside those of constant draft lengths that verify as many draft tokens.

    .venv-sglang/bin/python -m benchmarks.policy_sglang [--policies batch] [--lengths 1 2 3 5 7 15] [--topk 2] ...

Arms answer chats of `benchmarks.real_models`, whose arguments are taken, too.  On a CPU SGLang runs with the tests'
stand-ins for its kernels, so that only counts mean anything: tokens per step, and verified draft tokens per emitted
token.  Times of stand-ins mean nothing either, so policies are given a cost instead, `--cost` of a plain step for each
draft token, and learn no other.  A policy is compared with the constants by linear interpolation between the two next
to it; no speculation is the constant 0.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.real_models import on_sglang
from benchmarks.real_models.__main__ import CONTEXT, arguments, model_folder, tasks
from benchmarks.real_models.run import running


class Counts(NamedTuple):
    """Counts of one arm: verified draft tokens per emitted token, and emitted tokens per step and request."""

    verified: float
    tokens_per_step: float


PLAIN = Counts(0.0, 1.0)


def to_constants(policy: Counts, constants: Sequence[Counts]) -> float | None:
    """Return the ratio of tokens per step at equal verified tokens; None beyond the largest constant."""
    points = sorted([PLAIN, *constants])
    if policy.verified > points[-1].verified:
        return None
    verified, rates = np.array(points).T
    return float(policy.tokens_per_step / np.interp(policy.verified, verified, rates))


def state_cost(scheduler: Any, cost: float) -> None:
    """Give the planner of the process, a server's scheduler, the cost of a draft token, and no times of steps."""
    from specplug.types.step import StepCost

    planner = scheduler.draft_worker.drafting.step_planner
    planner.launch = functools.partial(planner.launch, timed=False)
    sizes = [(rows, rows * (1 + length), length) for rows in (1, 2, 4, 8, 16, 32) for length in (0, 1, 3, 7, 15)]
    planner.stage.calibrate(
        [StepCost(rows, tokens, 0, length, 1.0 + cost * (tokens - rows)) for rows, tokens, length in sizes]
    )


def counts_of(arm: Any, options: argparse.Namespace, model: str, concurrency: int, cost: float) -> Counts:
    """Run one arm."""
    task, warm_up, _ = tasks(options, model, concurrency, arm, on_sglang.answer)
    with running("sglang", [arm], on_sglang.answer) as hosts:
        hosts.start(warm_up)
        hosts.hosts[arm.name].inside(state_cost, cost=cost)
        answers = [hosts.ask(arm.name, task, group) for group in task.groups()]
    tokens = sum(each.tokens for each in answers)
    return Counts(sum(each.drafted for each in answers) / tokens, tokens / sum(each.steps for each in answers))


def table(found: Mapping[str, Counts], policies: Sequence[str]) -> list[list[str]]:
    """Return the rows of the table; `policies` are names of arms."""
    constants = [counts for name, counts in found.items() if name not in policies]
    rows = []
    for name, counts in found.items():
        ratio = to_constants(counts, constants) if name in policies else None
        beside = f"{ratio:.3f}" if ratio is not None else "beyond" if name in policies else ""
        rows.append([name, f"{counts.verified:.2f}", f"{counts.tokens_per_step:.3f}", beside])
    return rows


def main() -> None:
    """Run the benchmark and print a table for each number of prompts at a time."""
    from specplug.tools.cli.output import print_table

    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--policies", nargs="*", default=["batch"])
    own.add_argument("--lengths", nargs="*", type=int, default=[1, 2, 3, 5, 7, 15])
    own.add_argument("--cost", type=float, default=0.03, help="of a draft token, in plain steps (default: 0.03)")
    own.add_argument("--topk", type=int, default=1, help="1 for chains, more for trees (default: 1)")
    mine, rest = own.parse_known_args()
    options = arguments().parse_args(["--engine", "sglang", *rest])
    model = model_folder(options.model)
    for concurrency in options.concurrency:
        arms = on_sglang.by_policy(model, CONTEXT, concurrency, mine.policies, mine.lengths, mine.topk)
        found = {arm.name: counts_of(arm, options, model, concurrency, mine.cost) for arm in arms}
        names = ("", "verified per token", "tokens per step", "to constants")
        rows = table(found, [arm.name for arm in arms[: len(mine.policies)]])
        print_table(f"{concurrency} at a time, temperature {options.temperature:g}", names, rows)


if __name__ == "__main__":
    main()
