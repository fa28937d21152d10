"""Report of `specplug bench`: a verdict, tables with a row for each kind of prompt, and plots of the ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from specplug.tools.bench.report import ALL, REMEMBERED, Row, advice, as_dict, differences, rows
from specplug.tools.bench.run import Course
from specplug.tools.cli.html_report import Plot
from specplug.tools.cli.output import remark_text, table

NOTE = (
    "Ratios are of tokens per second, of all answers together; above 1 is faster. The 95 % intervals hold for all "
    "looks together, those of the kinds for all kinds together. Requests were greedy, those to specplug with "
    "`store: false`."
)
PARTED = (
    "In float32 greedy texts must be equal: there a difference is a fault, which `specplug audit URL` names. In half "
    "precision two tokens that are about as likely may change places with the shape of a batch; no quality is lost."
)
OTHERS = (
    "Other clients were served during {} of the prompts: tokens per step and acceptance leave these prompts out, and "
    "whether older memory answered them is not known."
)
UNLIKE = "Most texts differ: before the speeds, compare the models, dtypes, chat templates and flags of both sides."
FROM_MEMORY = (
    "Prompts {!r} were answered for the most part from responses that the server remembers from before, in this or in "
    "other clients' requests. They are not in the other rows: traffic seldom gains as much."
)
ENDED = {
    "minutes": "The limit of time was reached (--minutes).",
    "failures": "Requests failed one after another, so the run was ended.",
    "interrupted": "The run was interrupted.",
}
_STYLES = {"faster": "green", "slower": "red"}


class Report:
    """What was measured, for people and programs.

    Attributes:
        measured: the courses with a whole pair.
        differences: where both sides' texts part.
        errors: the distinct ones of requests.
        failures: lines of the first of them.
    """

    def __init__(self, about: dict[str, Any], courses: Sequence[Course]) -> None:
        pairs = [pair for course in courses for pair in course.pairs]
        self.measured = [course for course in courses if any(pair.is_whole for pair in course.pairs)]
        self.differences = list(differences(pairs))
        self.errors = list(dict.fromkeys(error for pair in pairs for error in pair.errors))
        self.failures = [f"a request failed: {error}" for error in self.errors[:3]]
        self.title = f"specplug bench: {about.get('model')}"
        self._about = about
        self._texts = sum(len(pair.group.prompts) for pair in pairs if pair.is_whole)

    def as_dict(self) -> dict[str, Any]:
        """Return the results ready for JSON."""
        return {
            **self._about,
            "texts": {
                "compared": self._texts,
                "identical": self._texts - len(self.differences),
                "differences": [asdict(each) for each in self.differences],
            },
            "runs": [as_dict(course) for course in self.measured],
            "errors": self.errors,
            "note": NOTE,
        }

    def parts(self) -> Iterator[Table | Text | str]:
        """Yield the results for people."""
        tested = self._about["tested"]["label"]
        baseline = self._about["baseline"]["label"]
        yield self.verdict()
        for course in self.measured:
            found = rows(course)
            sides = f"{self._about['model']}: {tested} against {baseline}"
            title = f"{sides}, {course.concurrency} in flight, answers of at most {course.max_tokens} tokens"
            yield table(title, _COLUMNS, map(_cells, found), whole=4)
            yield from (line for line in (ENDED.get(course.ended), advice(course)) if line)
            if found[-1].kind == REMEMBERED:
                yield FROM_MEMORY.format(REMEMBERED)
            if others := sum(len(pair.group.prompts) for pair in course.counted if pair.has_others):
                yield OTHERS.format(others)
        yield f"Texts identical on both sides: {self._texts - len(self.differences)} of {self._texts}."
        yield from (
            f"{each.kind}, {each.prompt!r}: from character {each.at} {each.tested!r} against {each.baseline!r}"
            for each in self.differences[:3]
        )
        if self.differences:
            yield UNLIKE if 2 * len(self.differences) > self._texts else PARTED
        yield remark_text(NOTE)

    def verdict(self) -> Text:
        """Return the results in a line."""
        wrong = ["texts differ"] * bool(self.differences) + ["requests failed"] * bool(self.errors)
        found = [rows(course) for course in self.measured]
        is_faster = all(of_one[0].verdict == "faster" for of_one in found)
        style = "red" if wrong else "green" if is_faster else "yellow"
        return Text("; ".join([*wrong, *map(self._sentence, self.measured, found)]), style)

    def _sentence(self, course: Course, found: Sequence[Row]) -> str:
        first = found[0]
        if first.kind == REMEMBERED:
            return f"{course.concurrency} in flight: nothing is known, as the server remembers answers to all prompts"
        sentence = f"{course.concurrency} in flight: {first.verdict or 'no difference shown'}, {first.ratio}"
        gained = [f"{row.kind} {row.ratio.value:.2f}" for row in found[1:] if row.verdict == "faster"]
        lost = [f"{row.kind} {row.ratio.value:.2f}" for row in found[1:] if row.verdict == "slower"]
        sentence += f", by {first.prompts} prompts in {course.seconds:.0f} s"
        return sentence + "".join(
            f", {what} {', '.join(it)}" for what, it in (("gains:", gained), ("loses:", lost)) if it
        )

    def plot(self, course: Course) -> Plot:
        """Return what plots the ratios of a course with their intervals, of all prompts and of each kind."""
        found = [row for row in rows(course) if row.kind != REMEMBERED][::-1]

        def draw(figure: Any) -> None:
            figure.set_size_inches(7, 1.2 + 0.35 * len(found))
            axes = figure.subplots()
            for place, row in enumerate(found):
                ratio = row.ratio
                colour = "#2f6fde" if row.kind == ALL else "#9aa5b1"
                if ratio.low is not None and ratio.high is not None:
                    axes.plot([ratio.low, ratio.high], [place, place], color=colour, linewidth=3)
                axes.plot(ratio.value, place, "o", color=colour)
                axes.annotate(str(ratio), (ratio.value, place), (0, 6), textcoords="offset points", ha="center")
            axes.axvline(1.0, color="#616e7c", linestyle="--")
            axes.set_xscale("log")
            ends = [end for row in found for end in (row.ratio.value, row.ratio.low, row.ratio.high) if end]
            low = max(0.01, min(0.9, *ends)) / 1.05
            high = min(1000.0, max(1.1, *ends)) * 1.05
            axes.set_xlim(low, high)
            ticks = [tick for tick in _TICKS if low <= tick <= high]
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(-0.6, len(found) - 0.3)
            labels = [f"{row.kind} ({row.prompts})" for row in found]
            axes.set_yticks(range(len(found)), labels, parse_math=False)
            axes.set_xlabel(f"times as fast, with 95 % intervals; {course.concurrency} in flight")
            axes.spines[["top", "right"]].set_visible(False)

        return draw


_TICKS = (0.1, 0.2, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10, 20, 50)
_COLUMNS = (
    *("kind", "prompts", "ratio", "verdict", "tokens per second", "against", "ms per token", "against"),
    *("ms to first", "against", "tokens per step", "accepted"),
)


def _cells(row: Row) -> list[str | Text]:
    tested = row.tested
    baseline = row.baseline
    return [
        row.kind,
        str(row.prompts),
        str(row.ratio),
        Text(row.verdict, _STYLES.get(row.verdict, "")),
        f"{tested.tokens_per_second:.1f}",
        f"{baseline.tokens_per_second:.1f}",
        f"{tested.ms_per_token:.2f}",
        f"{baseline.ms_per_token:.2f}",
        f"{tested.ms_to_first:.1f}",
        f"{baseline.ms_to_first:.1f}",
        "" if tested.tokens_per_step is None else f"{tested.tokens_per_step:.2f}",
        "" if tested.acceptance_rate is None else f"{tested.acceptance_rate:.0%}",
    ]
