"""Tables of the benchmark, and everything in them ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.real_models.arms import BASELINE, Arm, Found
from benchmarks.real_models.equality import Difference
from benchmarks.real_models.fresh import rows
from benchmarks.real_models.statistics import Clock, Ratio, best, ratios

OURS = "specplug"


def counts(found: Found, name: str, differences: Sequence[Difference]) -> dict[str, Any]:
    """Return an arm's counts, over all groups.

    "identical" are answers equal to the baseline's; "near_ties" are others that part where the two tokens' logits were
    nearly equal; "largest_gap" is the largest such difference of logits.
    """
    answers = found.answers[name]
    tokens, steps = sum(each.tokens for each in answers), sum(each.steps for each in answers)
    drafted, accepted = sum(each.drafted for each in answers), sum(each.accepted for each in answers)
    mine = [each for each in differences if each.arm == name]
    texts = sum(len(each.token_ids) for each in answers)
    return {
        "tokens": tokens,
        "tokens_per_second": tokens / sum(each.seconds for each in answers),
        "tokens_per_cpu_second": tokens / sum(each.cpu for each in answers),
        "tau": tokens / steps,
        "drafted": drafted,
        "accepted": accepted,
        "rejected_per_token": (drafted - accepted) / tokens,
        "texts": texts,
        "identical": texts - len(mine),
        "near_ties": sum(each.is_near_tie for each in mine),
        "largest_gap": max((each.gap for each in mine if each.gap is not None), default=None),
    }


def compared(found: Found, arms: Sequence[Arm], clocks: Sequence[Clock]) -> dict[str, Any]:
    """Return, by clock, every arm's ratio to the baseline, specplug's to every other arm, and the best built-in."""
    names = [arm.name for arm in arms if arm.name in found.answers]
    built_in = [arm.name for arm in arms if arm.role == "built-in" and arm.name in found.answers]
    result: dict[str, Any] = {}
    for clock in clocks:
        result[clock] = {"to_baseline": {name: ratios(found, name, BASELINE, clock) for name in names}}
        if OURS in names:
            others = [name for name in names if name != OURS]
            result[clock]["specplug_to"] = {name: ratios(found, OURS, name, clock) for name in others}
        if built_in:
            top = result[clock]["best_built_in"] = best(found, built_in, BASELINE, clock)
            ours = [arm.name for arm in arms if arm.role == "specplug" and arm.name in found.answers]
            result[clock]["to_best_built_in"] = {name: ratios(found, name, top, clock) for name in ours}
    return result


def print_all(title: str, results: Mapping[str, Any]) -> None:
    """Print the tables of one concurrency: ratios by each clock, counts, and fresh servers."""
    from specplug.tools.cli.output import print_table

    print(f"\n{title}")
    for name, ratio in results.get("constants", {}).items():
        print(f"{name}: {ratio:.3f} of {BASELINE}, tokens per CPU second, on the prompts that choose")
    for clock, part in results.get("ratios", {}).items():
        for which, what in _COMPARISONS.items():
            if which in part:
                kinds = list(next(iter(part[which].values())))
                rows = [[name, *map(stated, by_kind.values())] for name, by_kind in part[which].items()]
                print_table(f"tokens per {_CLOCKS[clock]} second, {what}", [what, *kinds], rows)
        if "best_built_in" in part:
            print(f"best built-in by this clock, in hindsight: {part['best_built_in']}\n")
    if "counts" in results:
        print_table("counts", _COUNTED, [_counts(name, each) for name, each in results["counts"].items()])
    for clock, by_steps in results.get("fresh", {}).items():
        title = f"fresh servers to fresh ones without speculation, tokens per {_CLOCKS[clock]} second"
        each = [" ".join(f"{ratio:.2f}" for ratio in row["servers"]) for row in by_steps]
        cells = [
            ["{} to {}".format(*row["steps"]), "{:.3f} ({:.3f}-{:.3f})".format(*row["mean"]), pairs]
            for row, pairs in zip(by_steps, each, strict=True)
        ]
        print_table(title, ["steps", "geometric mean", "each pair of servers"], cells)
    if results["differences"]:
        ties = sum(each.is_near_tie for each in results["differences"])
        print(
            f"{len(results['differences'])} answers differ from those without speculation, {ties} of them by near ties"
        )
    for name, why in results.get("left_out", {}).items():
        print(f"{name}: left out, because it did not run: {why}")


_COMPARISONS = {
    "to_baseline": f"to {BASELINE}",
    "specplug_to": "specplug to it",
    "to_best_built_in": "to the best built-in",
}
_CLOCKS = {"wall": "wall-clock", "cpu": "CPU"}
_COUNTED = ("", "tokens/s", "tau", "drafted", "accepted", "rejected per token", "identical", "near ties", "largest gap")


def stated(ratio: Ratio) -> str:
    """Return a ratio with its interval."""
    return f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _counts(name: str, row: Mapping[str, Any]) -> list[str]:
    gap = row["largest_gap"]
    return [
        name,
        f"{row['tokens_per_second']:.1f}",
        f"{row['tau']:.2f}",
        str(row["drafted"]),
        f"{row['accepted'] / row['drafted']:.0%}" if row["drafted"] else "",
        f"{row['rejected_per_token']:.2f}",
        f"{row['identical']} of {row['texts']}",
        str(row["near_ties"] or ""),
        "" if gap is None else f"{gap:.1e}",
    ]


def of_fresh(pairs: Sequence[Found], clocks: Sequence[Clock], steps: Sequence[int], decoding: bool) -> dict[str, Any]:
    """Return, by clock, the ratios of fresh pairs in ranges of steps; see `fresh.rows`."""
    runs = [pair.decoding() if decoding else pair for pair in pairs]
    answers = [(run.answers[OURS], run.answers[BASELINE]) for run in runs]
    return {clock: rows(answers, clock, steps) for clock in clocks}


def plain(found: Found, differences: Sequence[Difference]) -> dict[str, Any]:
    """Return the run itself as plain data, without the timelines of its steps."""
    return {
        "groups": found.groups,
        "kinds": found.kinds,
        "answers": {
            name: [{key: value for key, value in asdict(each).items() if key != "timeline"} for each in answers]
            for name, answers in found.answers.items()
        },
        "differences": [asdict(each) for each in differences],
    }
