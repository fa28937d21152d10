"""Benchmark of lossy verification on the shipped model: tokens per step against how far the text departs.

    .venv/bin/python -m benchmarks.lossy_acceptance [--tasks 16] [--json lossy.json]

Every arm serves the same tasks with drafts of the n-gram lookup, greedily and at temperature 0.7 with fixed seeds.
Threshold 1 must give the lossless verifier's text, or the benchmark fails.  Nothing is timed, so the figures are
reproducible.

    tokens/step     tokens per step, and the same relative to lossless verification
    departed        of the accepted draft tokens, the share that lossless verification would have rejected
    identical       share of outputs that equal the lossless ones
    correct         share of edits, quotes and JSON objects that are right; lossless verification's in brackets
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specplug.plugins.embedded import TextRequest
from specplug.tools.cli.launch import start_engine
from specplug.tools.cli.output import print_table
from specplug.tools.demo.tasks import KINDS, Task, make_tasks

THRESHOLDS = {"threshold": (1.0, 0.9, 0.5, 0.2), "typical": (1.0, 0.5, 0.2, 0.09)}
TEMPERATURES = (0.0, 0.7)


@dataclass(frozen=True)
class Arm:
    """What one verifier and threshold gave at one temperature."""

    verifier: str
    threshold: float
    temperature: float
    tokens_per_step: float
    departure_rate: float | None
    correct: float
    outputs: list[list[int]]


def served(verifier: str, threshold: float | None, temperature: float, tasks: list[Task]) -> Arm:
    """Serve every task; threshold None verifies losslessly, on the same server."""
    settings = {"proposer": "ngram", "policy": "fixed", "verifier": verifier, "num_speculative_tokens": 7}
    settings["faults"] = {"host_deadline_ms": None}  # a late draft would change the figures
    fields: dict[str, Any] = {"store": False}
    if threshold is not None:
        fields |= {"verifier": verifier, "acceptance_threshold": threshold}
    engine = start_engine("tiny", settings, max_num_seqs=8)
    try:
        requests = [
            TextRequest(prompt=task.prompt, max_tokens=96, temperature=temperature, seed=place, specplug=fields)
            for place, task in enumerate(tasks)
        ]
        outputs: list[list[int]] = [[] for _ in tasks]
        texts = [""] * len(tasks)
        for update in engine.stream(requests):
            outputs[update.index] += update.token_ids
            texts[update.index] += update.text
        snapshot = engine.metrics.snapshot()
    finally:
        engine.close()
    judged = [task.is_correct(text) for task, text in zip(tasks, texts, strict=True)]
    known = [right for right in judged if right is not None]
    return Arm(
        verifier="lossless" if threshold is None else verifier,
        threshold=1.0 if threshold is None else threshold,
        temperature=temperature,
        tokens_per_step=snapshot.total.tau or 0.0,
        departure_rate=snapshot.lossy.departure_rate,
        correct=sum(known) / len(known),
        outputs=outputs,
    )


def row(arm: Arm, lossless: Arm) -> tuple[str, ...]:
    """Return an arm's line of the table."""
    pairs = list(zip(arm.outputs, lossless.outputs, strict=True))
    same = sum(one == other for one, other in pairs) / len(pairs)
    return (
        f"{arm.temperature:g}",
        arm.verifier,
        f"{arm.threshold:g}",
        f"{arm.tokens_per_step:.2f} ({arm.tokens_per_step / lossless.tokens_per_step:.3f})",
        "" if arm.departure_rate is None else f"{arm.departure_rate:.1%}",
        f"{same:.0%}",
        f"{arm.correct:.0%} ({lossless.correct:.0%})",
    )


def main() -> int:
    """Run all arms; return 1 if threshold 1 changes a text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=16, help="tasks of each kind")
    parser.add_argument("--json", type=Path, help="write the arms here")
    arguments = parser.parse_args()
    tasks = [task for kind in KINDS for task in make_tasks(kind, "held-out", arguments.tasks)]
    arms, rows, wrong = [], [], []
    for temperature in TEMPERATURES:
        lossless = served("threshold", None, temperature, tasks)
        arms.append(lossless)
        rows.append(row(lossless, lossless))
        for verifier, thresholds in THRESHOLDS.items():
            for threshold in thresholds:
                arm = served(verifier, threshold, temperature, tasks)
                arms.append(arm)
                rows.append(row(arm, lossless))
                if threshold == 1 and arm.outputs != lossless.outputs:
                    wrong.append(f"{verifier}, temperature {temperature:g}: threshold 1 changes the text")
        print(f"temperature {temperature:g}: done", file=sys.stderr)
    title = f"Lossy verification, {len(tasks)} tasks"
    columns = ("temp.", "verifier", "threshold", "tokens/step", "departed", "identical", "correct")
    print_table(title, columns, rows, whole=3)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(arm) for arm in arms]))
    print("\n".join(wrong) or "Threshold 1 gave the lossless text.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
