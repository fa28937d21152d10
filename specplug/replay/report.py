"""Report of a replay, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specplug.replay.matrix import Found
from specplug.replay.reliability import Summary, bar, means, summarise, together
from specplug.replay.score import Calibration, Counts, ScoringRoofline, mean_speedup, pool
from specplug.replay.setup import Mode, Result

POOLED, MEAN, NO_DRAFTS = "pooled", "geometric mean", "no drafts"

MEAN_OF_WORKLOADS = "mean of workloads"

JUDGED: dict[str, tuple[str, Callable[[Result], Calibration]]] = {
    "reliability": ("Confidence", lambda result: result.calibration),
    "survival": ("Survival", lambda result: result.survival),
}
"""The probabilities that are compared with outcomes: their name in tables, and where they are, by their key in JSON."""

PLAIN = Counts.from_rows([(0, 0, 1, 1)])
"""Plain decoding: every step verifies nothing and emits one token."""


@dataclass(frozen=True, slots=True)
class Table:
    """A title, the column headings, and the rows."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class Report:
    """Results of a replay, by contender, mode and batch size."""

    def __init__(self, found: Sequence[Found], roofline: ScoringRoofline) -> None:
        """Build the report from the results of `specplug.replay.matrix.execute` and the step costs of `roofline`."""
        self.found = list(found)
        self.gamma = found[0].run.gamma if found else 0
        self.batches = sorted({batch for each in found for batch in each.run.batches})
        self.roofline = roofline
        self.labels = list(dict.fromkeys(each.run.contender.label for each in found))
        self.modes: list[Mode] = list(dict.fromkeys(each.run.mode for each in found))
        self.workloads = list(found[0].results) if found else []

    def at(self, label: str, mode: Mode, batch: int) -> Found:
        """Return the sequential replay that stands for a batch size."""
        return next(
            each
            for each in self.found
            if (each.run.contender.label, each.run.mode, each.run.in_flight) == (label, mode, 1)
            and batch in each.run.batches
        )

    def counts(self, label: str, mode: Mode, batch: int) -> list[Counts]:
        """Return the counts of each workload."""
        return [result.counts for result in self.at(label, mode, batch).results.values()]

    def tables(self) -> Iterator[Table]:
        """Yield the tables in reading order."""
        for mode in self.modes:
            yield self._drafts(mode, self.batches[0])
            yield self._speedups(mode)
            if len(self.batches) > 1:
                yield self._by_batch(mode)
        in_flight = [each for each in self.found if each.run.in_flight > 1]
        if in_flight:
            yield self._gap(in_flight)
        calibrated = list(self.reliabilities())
        if calibrated:
            yield from self._scores([each[:2] for each in calibrated])
            yield _curves(calibrated)

    def _drafts(self, mode: Mode, batch: int) -> Table:
        """Return the table of drafted and accepted tokens at one batch size."""
        rows = []
        for label in self.labels:
            found = self.at(label, mode, batch)
            for name, result in found.results.items():
                rows.append((label, name, str(result.items), *_cells(result.counts), _time(result)))
            everything = pool(result.counts for result in found.results.values())
            items = sum(result.items for result in found.results.values())
            rows.append((label, POOLED, str(items), *_cells(everything), ""))
        head = ("requests", "tokens", "steps", "tau", "accepted", "drafts/step", "waste", "us/step")
        return Table(f"Drafts at batch size {batch}, gamma {self.gamma}, {mode}", ("proposer", "workload", *head), rows)

    def _speedups(self, mode: Mode) -> Table:
        """Return the table of S(B) for every workload, with decoding without drafts for comparison."""
        rows = []
        for label in self.labels:
            columns = [self.at(label, mode, batch).results for batch in self.batches]
            for workload in self.workloads:
                pairs = zip(columns, self.batches, strict=True)
                cells = [f"{found[workload].counts.speedup(batch, self.roofline):.2f}" for found, batch in pairs]
                rows.append((label, workload, *cells))
            means = [mean_speedup(self.counts(label, mode, batch), batch, self.roofline) for batch in self.batches]
            rows.append((label, MEAN, *(f"{mean:.2f}" for mean in means)))
        rows.append((NO_DRAFTS, "", *(f"{PLAIN.speedup(batch, self.roofline):.2f}" for batch in self.batches)))
        title = f"Speed-up S(B) over plain decoding, gamma {self.gamma}, {mode}"
        return Table(title, ("proposer", "workload", *self._heads()), rows)

    def _by_batch(self, mode: Mode) -> Table:
        """Return the table of drafts of all workloads together, by batch size."""
        rows = []
        for label in self.labels:
            columns = [_cells(pool(self.counts(label, mode, batch))) for batch in self.batches]
            for place, name in enumerate(("tau", "accepted", "drafts/step", "waste"), start=2):
                rows.append((label, name, *(column[place] for column in columns)))
        title = f"All workloads pooled, by batch size, gamma {self.gamma}, {mode}"
        return Table(title, ("proposer", "", *self._heads()), rows)

    def _gap(self, in_flight: Sequence[Found]) -> Table:
        """Return the table of the loss from running requests concurrently, when their neighbours are unfinished."""
        rows = []
        for found in in_flight:
            label, batch = found.run.contender.label, found.run.in_flight
            alone = self.at(label, found.run.mode, batch).results
            before = {name: alone[name].counts for name in found.results}
            after = {name: result.counts for name, result in found.results.items()}
            means = [mean_speedup(counts.values(), batch, self.roofline) for counts in (before, after)]
            before[POOLED], after[POOLED] = pool(before.values()), pool(after.values())
            for name in before:
                speeds = [counts[name].speedup(batch, self.roofline) for counts in (before, after)]
                rows.append((label, name, *_compared(before[name].tau, after[name].tau), *_compared(*speeds)))
            rows.append((label, MEAN, "", "", "", *_compared(*means)))
        count = in_flight[0].run.in_flight
        title = f"{count} requests in flight against one after another, gamma {self.gamma}, serving"
        speed = f"S({count})"
        heads = ("tau, one by one", "tau, in flight", "gap", f"{speed}, one by one", f"{speed}, in flight", "gap")
        return Table(title, ("proposer", "workload", *heads), rows)

    def reliabilities(self) -> Iterator[tuple[str, Mode, int, Summary]]:
        """Yield contender, mode, batch size and calibration figures, for drafts with confidences."""
        for mode in self.modes:
            for label in self.labels:
                results = self.at(label, mode, self.batches[0]).results
                summary = summarise(together(result.calibration for result in results.values()))
                if summary is not None:
                    yield label, mode, self.batches[0], summary

    def _scores(self, calibrated: Sequence[tuple[str, Mode]]) -> Iterator[Table]:
        """Yield the tables of how well confidences, and survival probabilities, tell which tokens are accepted."""
        head = ("tokens", "stated", "accepted", "Brier", "Brier of the mean", "calibration error", "AUC")
        for what, of in JUDGED.values():
            rows: list[tuple[str, ...]] = []
            for label, mode in calibrated:
                results = self.at(label, mode, self.batches[0]).results
                parts = {name: summarise(of(result)) for name, result in results.items()}
                parts[POOLED] = summarise(together(map(of, results.values())))
                rows += [(label, mode, name, *_figures(found)) for name, found in parts.items() if found]
                mean = {name: _score(value) for name, value in means(map(of, results.values())).items()}
                rows.append((label, mode, MEAN_OF_WORKLOADS, "", "", "", mean["brier"], "", "", mean["auc"]))
            title = f"{what} against acceptance at batch size {self.batches[0]}"
            yield Table(title, ("proposer", "mode", "workload", *head), rows)

    def faults(self) -> dict[str, dict[str, int]]:
        """Return the faults of all runs, by plug-in and kind."""
        total: dict[str, dict[str, int]] = {}
        for each in self.found:
            for result in each.results.values():
                for plugin, kinds in result.faults.items():
                    mine = total.setdefault(plugin, {})
                    for kind, count in kinds.items():
                        mine[kind] = mine.get(kind, 0) + count
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report ready for JSON, including the histograms of steps."""
        return {
            "batches": self.batches,
            "roofline": {"n_sat": self.roofline.n_sat, "overhead": self.roofline.overhead},
            "no_drafts": {str(batch): PLAIN.speedup(batch, self.roofline) for batch in self.batches},
            "runs": [self._run(each) for each in self.found],
            "faults": self.faults(),
        }

    def _run(self, found: Found) -> dict[str, Any]:
        run = found.run
        setup = run.contender.setup
        counts = [result.counts for result in found.results.values()]
        return {
            "proposer": run.contender.label if setup is None else setup.proposer,
            "label": run.contender.label,
            "policy": None if setup is None else setup.policy,
            "mode": run.mode,
            "gamma": run.gamma,
            "batches": list(run.batches),
            "in_flight": run.in_flight,
            "trees": setup is not None and setup.trees,
            "lag": 0 if setup is None else setup.lag,
            "workloads": {name: self._result(result, run.batches) for name, result in found.results.items()},
            "pooled": self._counts(pool(counts), run.batches),
            "mean_speedup": {str(batch): mean_speedup(counts, batch, self.roofline) for batch in run.batches},
            **_judged(found.results.values()),
            **{f"mean_{name}": means(map(of, found.results.values())) for name, (_, of) in JUDGED.items()},
        }

    def _result(self, result: Result, batches: Sequence[int]) -> dict[str, Any]:
        return {
            "requests": result.items,
            **self._counts(result.counts, batches),
            "microseconds_per_step": result.microseconds_per_step,
            "memory_bytes": result.memory,
            "faults": result.faults,
            **_judged([result]),
            "histogram": result.counts.rows(),
        }

    def _counts(self, counts: Counts, batches: Iterable[int]) -> dict[str, Any]:
        return {
            "steps": counts.steps,
            "emitted": counts.emitted,
            "verified": counts.verified,
            "accepted": counts.accepted,
            "tau": counts.tau,
            "acceptance_rate": counts.acceptance_rate,
            "drafts_per_step": counts.drafts_per_step,
            "waste": counts.waste,
            "speedup": {str(batch): counts.speedup(batch, self.roofline) for batch in batches},
        }

    def _heads(self) -> tuple[str, ...]:
        return tuple(f"B={batch}" for batch in self.batches)


def _cells(counts: Counts) -> tuple[str, ...]:
    rate = f"{counts.acceptance_rate:.0%}" if counts.verified else "none"
    numbers = (f"{counts.tau:.2f}", rate, f"{counts.drafts_per_step:.2f}", f"{counts.waste:.2f}")
    return (str(counts.emitted), str(counts.steps), *numbers)


def _time(result: Result) -> str:
    return f"{result.microseconds_per_step:.0f}"


def _compared(before: float, after: float) -> tuple[str, str, str]:
    """Return two figures and their relative difference."""
    gap = f"{after / before - 1:+.1%}" if before else "none"
    return f"{before:.2f}", f"{after:.2f}", gap


def _judged(results: Iterable[Result]) -> dict[str, Any]:
    """Return the figures of probabilities against outcomes of all results together, ready for JSON."""
    everything = list(results)
    found = {name: summarise(together(map(of, everything))) for name, (_, of) in JUDGED.items()}
    return {name: None if each is None else each.as_dict() for name, each in found.items()}


def _figures(found: Summary) -> tuple[str, ...]:
    shares = (f"{found.confidence:.3f}", f"{found.accepted:.3f}")
    return (str(found.tokens), *shares, *map(_score, (found.brier, found.constant_brier, found.gap, found.auc)))


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _curves(calibrated: Sequence[tuple[str, Mode, int, Summary]]) -> Table:
    """Return the table of the reliability curve: the share of tokens accepted at each level of confidence."""
    rows = []
    for label, mode, _, found in calibrated:
        for point in found.curve:
            figures = (str(point.count), f"{point.confidence:.3f}", f"{point.acceptance:.3f}")
            rows.append((label, mode, *figures, bar(point)))
    head = ("tokens", "confidence", "accepted", "accepted (#), confidence (|)")
    return Table("Reliability", ("proposer", "mode", *head), rows)
