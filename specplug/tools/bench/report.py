"""Report of a benchmark: ratios with intervals, of all prompts together and by kind, and what they say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specplug.tools.bench.ratio import Ratio, interval, spread_of
from specplug.tools.bench.run import Course, Pair, Timed
from specplug.tools.bench.sequential import critical_value

ALL = "all"
REMEMBERED = "(from older memory)"

_POWER = 0.84
"""Quantile of the normal distribution by which as many prompts as are named show a difference in 80 % of the runs."""

_MOST_PAIRS = 2000
_SHOWN = 40  # characters of texts that differ


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side's figures: tokens per second over the whole time of its answers, and medians of times over the requests.

    `tokens_per_step` is per request, bonus included, and `acceptance_rate` accepted / drafted, of the time in which no
    other clients were served; None without counts of such.
    """

    tokens_per_second: float
    ms_per_token: float
    ms_to_first: float
    tokens_per_step: float | None
    acceptance_rate: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of prompt, or all: both sides' figures and their ratio.

    So that a run whose sides do not differ has at most one error, the verdict of a kind is "" unless all prompts have
    one.  Where these show no difference, it is "" unless the kind's interval excludes equal sides by far, see `EQUAL`.
    """

    kind: str
    prompts: int
    tested: SideFigures
    baseline: SideFigures
    ratio: Ratio
    verdict: str


def rows(course: Course) -> list[Row]:
    """Return the rows of a course with pairs: all of them, each kind if there are several, and those of older memory.

    Older memory has no interval, as does a run without a look. The kinds share the level.
    """
    counted = course.counted
    remembered = [pair for pair in course.pairs if pair.is_whole and pair.is_remembered]
    kinds = list(dict.fromkeys(group.kind for group in course.groups))
    found = []
    if counted:
        critical = critical_value(course.looks, course.level) if course.looks else None
        found.append(_row(ALL, counted, critical))
    for kind in kinds if len(kinds) > 1 else ():
        if of_kind := [pair for pair in counted if pair.group.kind == kind]:
            critical = critical_value(course.looks, course.level / len(kinds)) if course.looks else None
            found.append(_row(kind, of_kind, critical, found[0].verdict))
    return found + ([_row(REMEMBERED, remembered, None, "no difference shown")] if remembered else [])


def _row(kind: str, pairs: Sequence[Pair], critical: float | None, of_all: str | None = None) -> Row:
    """Return the row of a kind, where `of_all` is the verdict of all prompts; None if the row is theirs."""
    ratio = interval([(pair.group.kind, *pair.seconds()) for pair in pairs], critical)
    is_decided = of_all in (None, "faster", "slower") or (of_all == "no difference" and ratio.is_unequal)
    return Row(
        kind,
        sum(len(pair.group.prompts) for pair in pairs),
        _side([pair.tested for pair in pairs if pair.tested]),
        _side([pair.baseline for pair in pairs if pair.baseline]),
        ratio,
        ratio.verdict if is_decided else "",
    )


def _side(timed: Sequence[Timed]) -> SideFigures:
    answers = [answer for each in timed for answer in each.answers if answer.first]  # without text there are no times
    times = [
        1e3 * (answer.last - answer.first) / (answer.num_tokens - 1) for answer in answers if answer.num_tokens > 1
    ]
    counted = [each.counts for each in timed if each.counts and not each.has_others]
    counts = {name: sum(each[name] for each in counted) for name in (counted[0] if counted else ())}
    steps = counts.get("target_steps")
    drafted = counts.get("proposed")
    return SideFigures(
        tokens_per_second=sum(each.tokens for each in timed) / sum(each.seconds for each in timed),
        ms_per_token=statistics.median(times or [0.0]),
        ms_to_first=1e3 * statistics.median([answer.first for answer in answers] or [0.0]),
        tokens_per_step=counts["emitted"] / steps if steps else None,
        acceptance_rate=counts["accepted"] / drafted if drafted else None,
    )


def is_known(course: Course, percent: float) -> bool:
    """Return whether a course has a verdict, and an interval within so many percent or around no difference."""
    ratio = rows(course)[0].ratio
    return ratio.verdict == "no difference" or (ratio.verdict in ("faster", "slower") and ratio.is_within(percent))


def advice(course: Course) -> str | None:
    """Return how many more prompts would probably show a difference of the measured size; None if one is decided."""
    row = rows(course)[0]
    if row.kind != ALL or row.ratio.low is None:
        return "Too few prompts were measured for an interval."
    if row.verdict != "no difference shown":
        return None
    import numpy as np
    from scipy.special import ndtr, stdtrit

    seconds = [(pair.group.kind, *pair.seconds()) for pair in course.counted]
    spread = spread_of(seconds)
    most = max(_MOST_PAIRS, 4 * len(seconds))
    counts = np.arange(len(seconds) + 1, most + 1)
    quantiles = _POWER - stdtrit(counts - 1, ndtr(-critical_value(course.looks, course.level)))
    is_enough = quantiles * np.sqrt(spread.variance(1.0) * len(seconds) / counts) < abs(spread.difference(1.0))
    if not is_enough.any():
        return f"If there is a difference, {most * course.concurrency} prompts would be too few to show it."
    more = int(is_enough.argmax()) + 1
    pairs = len(course.pairs) + more
    given = "" if pairs <= len(course.groups) else f"{pairs * course.concurrency} prompts and "
    minutes = math.ceil(pairs * course.seconds / len(course.pairs) / 60)
    return (
        f"If the ratio is the measured {row.ratio.value:.2f}, about {more * course.concurrency} more prompts would "
        f"probably show it: give {given}--minutes {minutes} --max-tokens {course.max_tokens}"
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place, in characters, where both sides' greedy texts of a prompt part, and what they go on with."""

    kind: str
    prompt: str
    at: int
    tested: str
    baseline: str


def differences(pairs: Sequence[Pair]) -> Iterator[Difference]:
    """Yield where texts differ, of whole pairs."""
    for pair in pairs:
        if pair.is_whole and pair.tested and pair.baseline:
            answers = zip(pair.group.prompts, pair.tested.answers, pair.baseline.answers, strict=True)
            for prompt, one, other in answers:
                texts = one.everything, other.everything
                if texts[0] != texts[1]:
                    parts = enumerate(zip(*texts, strict=False))
                    at = next((place for place, (a, b) in parts if a != b), min(map(len, texts)))
                    yield Difference(
                        pair.group.kind, _begin(prompt.body()), at, *(text[at : at + _SHOWN] for text in texts)
                    )


def _begin(body: dict[str, Any]) -> str:
    text = body["prompt"] if "prompt" in body else str(body["messages"][-1].get("content"))
    return str(text)[:_SHOWN]


def as_dict(course: Course) -> dict[str, Any]:
    """Return a course and its rows ready for JSON."""
    return {
        "concurrency": course.concurrency,
        "max_tokens": course.max_tokens,
        "ended": course.ended,
        "seconds": course.seconds,
        "failed_pairs": sum(not pair.is_whole for pair in course.pairs),
        "advice": advice(course),
        "rows": [asdict(row) for row in rows(course)],
    }
