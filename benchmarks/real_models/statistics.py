"""Ratios of arms' rates, by kind of task and over all kinds, with bootstrap intervals over the groups of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.real_models.arms import Answer, Found

Clock = Literal["wall", "cpu"]

DRAWS = 2000

ALL = "all"
"""Stands for the geometric mean over the kinds."""


class Ratio(NamedTuple):
    """A ratio, and its 95 % interval; both ends equal it where there is only one group to draw from."""

    value: float
    low: float
    high: float


def seconds(answer: Answer, clock: Clock) -> float:
    """Return an answer's time by a clock."""
    return answer.seconds if clock == "wall" else answer.cpu


def ratios(found: Found, arm: str, other: str, clock: Clock) -> dict[str, Ratio]:
    """Return the ratio of two arms' tokens per second, by kind, and over all kinds under `ALL`.

    A kind's rate is that of all its groups together.  Groups are drawn anew within each kind, apart from those of other
    kinds, each with all its rounds; both arms answered the same ones, so each draw compares like with like.
    """
    random = np.random.default_rng(0)
    drawn = {
        kind: _drawn(found, arm, other, [i for i, each in enumerate(found.kinds) if each == kind], clock, random)
        for kind in dict.fromkeys(found.kinds)
    }
    drawn[ALL] = np.exp(np.mean([np.log(each) for each in drawn.values()], axis=0))
    return {kind: _ratio(each) for kind, each in drawn.items()}


def _drawn(
    found: Found, arm: str, other: str, places: Sequence[int], clock: Clock, random: np.random.Generator
) -> np.ndarray:
    """Return the ratio of all groups, and then those of `DRAWS` draws, as [1 + DRAWS] float64."""
    numbers: dict[tuple[int, ...], int] = {}
    group = [numbers.setdefault(tuple(found.groups[place]), len(numbers)) for place in places]
    draws = _draws(len(numbers), random)

    def rate(name: str) -> np.ndarray:
        answers = [found.answers[name][place] for place in places]
        tokens = np.bincount(group, [answer.tokens for answer in answers])
        times = np.bincount(group, [seconds(answer, clock) for answer in answers])
        return np.append(tokens.sum() / times.sum(), tokens[draws].sum(1) / times[draws].sum(1))

    return rate(arm) / rate(other)


def _draws(count: int, random: np.random.Generator) -> np.ndarray:
    """Return draws of places, [DRAWS, count - 1] int64; means of one place more would vary too little."""
    return random.integers(count, size=(DRAWS, max(1, count - 1)))


def _ratio(drawn: np.ndarray) -> Ratio:
    low, high = np.percentile(drawn[1:], [2.5, 97.5])
    return Ratio(float(drawn[0]), float(low), float(high))


def over_pairs(values: Sequence[float]) -> Ratio:
    """Return the geometric mean of the ratios of several pairs of servers; pairs are drawn anew for its interval."""
    logs = np.log(np.array(values, float))
    draws = _draws(len(logs), np.random.default_rng(0))
    return _ratio(np.exp(np.append(logs.mean(), logs[draws].mean(1))))


def ranked(runs: Sequence[Found], baseline: str, clock: Clock) -> dict[str, float]:
    """Return the ratio to the baseline over all kinds of every other arm of several runs, the best one first.

    Each arm is compared with the baseline of its own run, so runs at different times can be ranked together.
    """
    found = {
        name: ratios(run, name, baseline, clock)[ALL].value for run in runs for name in run.answers if name != baseline
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def best(found: Found, names: Sequence[str], baseline: str, clock: Clock) -> str:
    """Return the fastest of some arms over all kinds, in hindsight."""
    return max(names, key=lambda name: ratios(found, name, baseline, clock)[ALL].value)
