"""Report of a judgement, as tables for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from benchmarks.simulate.judge import CEILING, NONE, Verdict, is_constant
from benchmarks.simulate.peers import PEERS
from specplug.replay.report import Table

HEADINGS = {
    "goodput": "goodput, tokens per second relative to none",
    "latency_p99": "99th percentile of latency, relative to none",
    "rejected_share": "draft tokens and padding verified in vain, per emitted token",
}

RATIOS = ("to_none", "to_best_fixed", "to_best_peer", "to_clairvoyant", "p99_to_best_peer", "p99_to_least")
"""Ratios of a policy's goodput to those of others, and of its 99th percentile of latency to that of the best peer
(`Outcome.merit`), and to the least of all peers."""

_UNKNOWN = {"goodput": math.nan, "latency_p99": math.nan}


class Report:
    """Verdicts by case.

    Args:
        verdicts: the result of `judge`.
        policies: labels of the policies under test.
    """

    def __init__(self, verdicts: Sequence[Verdict], policies: Sequence[str]) -> None:
        self._policies = list(policies)
        self._figures = [(verdict, verdict.outcome.figures()) for verdict in verdicts]

    def tables(self) -> Iterator[Table]:
        """Yield for each surface and mode a table of each heading, and a summary of the policies under test."""
        for (surface, mode), group in groupby(self._figures, key=lambda it: (it[0].case.surface, it[0].case.mode)):
            rows = list(group)
            for name, heading in HEADINGS.items():
                yield _table(f"Simulated: {surface.name}, {mode.name}, lag {mode.lag}: {heading}", rows, name)
        columns = ("policy", "surface", "mode", "traffic", *(key.replace("_", " ") for key in RATIOS))
        yield Table("Simulated: goodput of the policies under test; p99 is of latency", columns, [*self._cells()])

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for row in self.comparisons():
            cells = ["" if row[key] is None else f"{row[key]:.3f}" for key in RATIOS]
            yield (row["policy"], row["surface"], row["mode"], row["traffic"], *cells)

    def comparisons(self) -> Iterator[dict[str, Any]]:
        """Yield how each policy compares in each case, by the keys `RATIOS`; None without anything to compare with."""
        for case, group in groupby(self._figures, key=lambda it: it[0].case):
            rows = {verdict.label: (verdict.outcome.merit, figures) for verdict, figures in group}
            found = {label: figures for label, (_, figures) in rows.items()}
            fixed = [label for label in found if is_constant(label) and label != NONE.label]
            peers = [row for label, row in rows.items() if label in PEERS]
            _, best = max(peers, key=lambda row: row[0], default=(0.0, _UNKNOWN))
            for label in self._policies:
                own, named = found[label], {"policy": label, "surface": case.surface.name, "mode": case.mode.name}
                goodput, p99 = own["goodput"], own["latency_p99"]
                ratios = (
                    goodput / found[NONE.label]["goodput"],
                    goodput / max((found[each]["goodput"] for each in fixed), default=math.nan),
                    goodput / max((figures["goodput"] for _, figures in peers), default=math.nan),
                    goodput / found[CEILING]["goodput"],
                    p99 / best["latency_p99"],
                    p99 / min((figures["latency_p99"] for _, figures in peers), default=math.nan),
                )
                finite = [None if math.isnan(ratio) else ratio for ratio in ratios]
                yield {**named, "traffic": str(case.traffic), **dict(zip(RATIOS, finite, strict=True))}

    def faults(self) -> dict[str, dict[str, int]]:
        """Return the counts of faults by label and kind, of policies with faults."""
        found: dict[str, dict[str, int]] = {}
        for verdict, _ in self._figures:
            for kind, count in verdict.outcome.faults.items():
                kinds = found.setdefault(verdict.label, {})
                kinds[kind] = kinds.get(kind, 0) + count
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serialisable data."""
        return {
            "simulated": True,
            "comparisons": list(self.comparisons()),
            "faults": self.faults(),
            "runs": [
                {
                    "surface": verdict.case.surface.name,
                    "held_out": verdict.case.surface.held_out,
                    "mode": verdict.case.mode.name,
                    "lag": verdict.case.mode.lag,
                    "gamma": verdict.case.mode.gamma,
                    "traffic": str(verdict.case.traffic),
                    "requests": verdict.case.requests,
                    "limits": asdict(verdict.case.limits),
                    "disturbance": asdict(verdict.case.disturbance),
                    "policy": verdict.label,
                    **figures,
                }
                for verdict, figures in self._figures
            ],
        }


def _table(title: str, rows: list[tuple[Verdict, dict[str, float]]], name: str) -> Table:
    """Return one figure of a surface and mode, by policy and traffic."""
    traffics = list(dict.fromkeys(str(verdict.case.traffic) for verdict, _ in rows))
    cells: dict[str, dict[str, float]] = {}
    for verdict, figures in rows:
        cells.setdefault(verdict.label, {})[str(verdict.case.traffic)] = figures[name]
    base = cells[NONE.label]
    if name == "rejected_share":
        base = dict.fromkeys(base, 1.0)
    body = [(label, *(f"{found[each] / base[each]:.3f}" for each in traffics)) for label, found in cells.items()]
    return Table(title, ("policy", *traffics), body)
