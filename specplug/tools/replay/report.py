"""Report of a replay, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from specplug.tools.replay.calibration import Calibration, means, merge_calibrations
from specplug.tools.replay.run import Mode, ReplayRun
from specplug.tools.replay.score import PLAIN, Result, ScoringRoofline, StepCounts, mean_speedup, pool

POOLED = "pooled"
MEAN = "geometric mean"
NO_DRAFTS = "no drafts"
MEAN_OF_WORKLOADS = "mean of workloads"

JUDGED: dict[str, tuple[str, Callable[[Result], Calibration]]] = {
    "reliability": ("Confidence", lambda result: result.calibration),
    "survival": ("Survival", lambda result: result.survival),
}
"""The probabilities that are compared with outcomes: their name in tables, and where they are, by their key in JSON."""


class Table(NamedTuple):
    """A title, the column headings, and the rows."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


class ReplayReport:
    """Results of a replay, by setup, mode and batch size."""

    def __init__(self, runs: Sequence[ReplayRun], roofline: ScoringRoofline) -> None:
        """Build the report from at least one executed run and the step costs of `roofline`."""
        self.runs = list(runs)
        self.roofline = roofline
        self.gamma = max(run.setup.gamma for run in runs)
        self.batches = sorted({run.batch for run in runs})
        self.labels = list(dict.fromkeys(run.setup.label for run in runs))
        self.modes: list[Mode] = list(dict.fromkeys(run.mode for run in runs))
        self.workloads = list(runs[0].results)

    def tables(self) -> Iterator[Table]:
        """Yield the tables in reading order."""
        for mode in self.modes:
            yield self._drafts(mode)
            yield self._speedups(mode)
            if len(self.batches) > 1:
                yield self._by_batch(mode)
        for what, of in JUDGED.values():
            rows = [row for mode in self.modes for label in self.labels for row in self._scores(label, mode, of)]
            if rows:
                head = ("tokens", "stated", "accepted", "Brier", "Brier of the mean", "calibration error", "AUC")
                title = f"{what} against acceptance at batch size {self.batches[0]}"
                yield Table(title, ("proposer", "mode", "workload", *head), rows)

    def faults(self) -> dict[str, dict[str, int]]:
        """Return the faults of all runs, by plug-in and kind."""
        total: dict[str, Counter[str]] = {}
        for plugin, kinds in (it for run in self.runs for each in run.results.values() for it in each.faults.items()):
            total.setdefault(plugin, Counter()).update(kinds)
        return {plugin: dict(kinds) for plugin, kinds in total.items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report ready for JSON, including the histograms of steps."""
        return {
            "batches": self.batches,
            "roofline": {"n_sat": self.roofline.n_sat, "overhead": self.roofline.overhead},
            "no_drafts": {str(batch): PLAIN.speedup(batch, self.roofline) for batch in self.batches},
            "runs": [self._run(each) for each in self.runs],
            "faults": self.faults(),
        }

    # -- tables --------------------------------------------------------------------------------------------------

    def _at(self, label: str, mode: Mode, batch: int) -> Mapping[str, Result]:
        key = (label, mode, batch)
        return next(it.results for it in self.runs if (it.setup.label, it.mode, it.batch) == key)

    def _counts(self, label: str, mode: Mode, batch: int) -> list[StepCounts]:
        return [result.counts for result in self._at(label, mode, batch).values()]

    def _drafts(self, mode: Mode) -> Table:
        """Return the table of drafted and accepted tokens at the smallest batch size."""
        rows = []
        batch = self.batches[0]
        for label in self.labels:
            found = self._at(label, mode, batch)
            for name, result in found.items():
                time = f"{result.microseconds_per_step:.0f}"
                rows.append((label, name, str(result.items), *_cells(result.counts), time))
            items = sum(result.items for result in found.values())
            rows.append((label, POOLED, str(items), *_cells(pool(self._counts(label, mode, batch))), ""))
        head = ("requests", "tokens", "steps", "tau", "accepted", "drafts/step", "waste", "us/step")
        return Table(f"Drafts at batch size {batch}, gamma {self.gamma}, {mode}", ("proposer", "workload", *head), rows)

    def _speedups(self, mode: Mode) -> Table:
        """Return the table of S(B) for every workload, with decoding without drafts for comparison."""
        rows = []
        for label in self.labels:
            columns = [(self._counts(label, mode, batch), batch) for batch in self.batches]
            for place, workload in enumerate(self.workloads):
                cells = [f"{counts[place].speedup(batch, self.roofline):.2f}" for counts, batch in columns]
                rows.append((label, workload, *cells))
            averages = [mean_speedup(counts, batch, self.roofline) for counts, batch in columns]
            rows.append((label, MEAN, *(f"{average:.2f}" for average in averages)))
        rows.append((NO_DRAFTS, "", *(f"{PLAIN.speedup(batch, self.roofline):.2f}" for batch in self.batches)))
        title = f"Speed-up S(B) over plain decoding, gamma {self.gamma}, {mode}"
        return Table(title, ("proposer", "workload", *self._heads()), rows)

    def _by_batch(self, mode: Mode) -> Table:
        """Return the table of drafts by batch size, all workloads together."""
        rows = []
        for label in self.labels:
            columns = [_cells(pool(self._counts(label, mode, batch))) for batch in self.batches]
            for place, name in enumerate(("tau", "accepted", "drafts/step", "waste"), start=2):
                rows.append((label, name, *(column[place] for column in columns)))
        title = f"All workloads pooled, by batch size, gamma {self.gamma}, {mode}"
        return Table(title, ("proposer", "", *self._heads()), rows)

    def _scores(self, label: str, mode: Mode, of: Callable[[Result], Calibration]) -> Iterator[tuple[str, ...]]:
        """Yield rows on how well probabilities tell which tokens are accepted; none for drafts without confidences."""
        found = {name: of(result) for name, result in self._at(label, mode, self.batches[0]).items()}
        for name, calibration in (*found.items(), (POOLED, merge_calibrations(found.values()))):
            figures = calibration.as_dict()
            if figures is not None:
                names = ("brier", "constant_brier", "calibration_error", "auc")
                shares = (f"{figures['confidence']:.3f}", f"{figures['accepted']:.3f}")
                yield label, mode, name, str(figures["tokens"]), *shares, *(_score(figures[key]) for key in names)
        if any(calibration.count for calibration in found.values()):
            mean = {name: _score(value) for name, value in means(found.values()).items()}
            yield label, mode, MEAN_OF_WORKLOADS, "", "", "", mean["brier"], "", "", mean["auc"]

    def _heads(self) -> tuple[str, ...]:
        return tuple(f"B={batch}" for batch in self.batches)

    # -- JSON ----------------------------------------------------------------------------------------------------

    def _run(self, run: ReplayRun) -> dict[str, Any]:
        results = run.results.values()
        counts = [result.counts for result in results]
        setup = {
            name: getattr(run.setup, name) for name in ("proposer", "label", "policy", "gamma", "trees", "engine_rates")
        }
        return {
            **setup,
            "mode": run.mode,
            "batches": [run.batch],
            "workloads": {name: self._result(result, run.batch) for name, result in run.results.items()},
            "pooled": self._figures(pool(counts), run.batch),
            "mean_speedup": {str(run.batch): mean_speedup(counts, run.batch, self.roofline)},
            **_judged(results),
            **{f"mean_{name}": means(map(of, results)) for name, (_, of) in JUDGED.items()},
        }

    def _result(self, result: Result, batch: int) -> dict[str, Any]:
        return {
            "requests": result.items,
            **self._figures(result.counts, batch),
            "microseconds_per_step": result.microseconds_per_step,
            "memory_bytes": result.memory,
            "faults": result.faults,
            **_judged([result]),
            "histogram": result.counts.rows(),
        }

    def _figures(self, counts: StepCounts, batch: int) -> dict[str, Any]:
        names = ("steps", "emitted", "verified", "accepted", "tau", "acceptance_rate", "drafts_per_step", "waste")
        figures = {name: getattr(counts, name) for name in names}
        return {**figures, "speedup": {str(batch): counts.speedup(batch, self.roofline)}}


def _cells(counts: StepCounts) -> tuple[str, ...]:
    rate = f"{counts.acceptance_rate:.0%}" if counts.verified else "none"
    numbers = (f"{counts.tau:.2f}", rate, f"{counts.drafts_per_step:.2f}", f"{counts.waste:.2f}")
    return (str(counts.emitted), str(counts.steps), *numbers)


def _judged(results: Iterable[Result]) -> dict[str, Any]:
    """Return the figures of probabilities against outcomes of all results together, ready for JSON."""
    everything = list(results)
    return {name: merge_calibrations(map(of, everything)).as_dict() for name, (_, of) in JUDGED.items()}


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"
