"""Tables of the benchmark, and everything in them ready for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.real_models.arms import BASELINE, Arm, Found
from benchmarks.real_models.equality import NEAR_TIE, Difference
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
            result[clock]["best_built_in"] = best(found, built_in, BASELINE, clock)
    return result


def print_all(title: str, results: Mapping[str, Any]) -> None:
    """Print the tables of one concurrency: ratios by each clock, counts, and fresh servers."""
    from specplug.cli.output import print_table

    print(f"\n{title}")
    for clock, part in results["ratios"].items():
        for which, what in (("to_baseline", f"to {BASELINE}"), ("specplug_to", "specplug to it")):
            if which in part:
                kinds = list(part[which][BASELINE])
                rows = [[name, *map(stated, by_kind.values())] for name, by_kind in part[which].items()]
                print_table(f"tokens per {_CLOCKS[clock]} second, {what}", [what, *kinds], rows)
        if "best_built_in" in part:
            print(f"best built-in by this clock, in hindsight: {part['best_built_in']}\n")
    print_table("counts", _COUNTED, [_counts(name, each) for name, each in results["counts"].items()])
    for clock, rows in results.get("fresh", {}).items():
        title = f"fresh servers to fresh ones without speculation, tokens per {_CLOCKS[clock]} second, cumulative"
        each = [" ".join(f"{ratio:.2f}" for ratio in row["servers"]) for row in rows]
        cells = [[str(row["steps"]), f"{row['mean']:.3f}", pairs] for row, pairs in zip(rows, each, strict=True)]
        print_table(title, ["after steps", "geometric mean", "each pair of servers"], cells)
    for name, why in results["left_out"].items():
        print(f"{name}: left out, because it did not run: {why}")


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


__all__ = ["NEAR_TIE", "compared", "counts", "plain", "print_all", "stated"]
