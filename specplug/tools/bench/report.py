"""Report of a benchmark: both modes side by side for each concurrency, and ratios with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specplug.tools.bench.run import Measured
from specplug.tools.client.answers import Mode

LEVEL = 0.05
"""Probability that an interval misses the ratio."""

POWER = 0.8
"""Probability that as many pairs as are named show a difference of the measured size."""

MOST_PAIRS = 1000
"""A difference that needs more pairs of blocks is called none."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed-up of the server by speculation, as a geometric mean over the pairs of blocks.

    From `low` to `high` is the 95 % interval by Student's t over the logarithms, wider after several looks; None with
    fewer than two pairs.  If it holds 1, `needed` pairs would probably show a difference of this size; None if more
    than `MOST_PAIRS`.
    """

    mean: float
    low: float | None
    high: float | None
    needed: int | None = None

    @property
    def is_known(self) -> bool:
        """Return whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def verdict(self) -> str:
        """Return "faster", "slower", or "no difference shown"."""
        if not self.is_known:
            return "no difference shown"
        return "faster" if self.mean > 1 else "slower"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """One mode's figures at one concurrency, which exclude `failed` requests.

    They are medians: over the blocks the throughput of all requests together, and over the requests the times to the
    first token and per token after it.
    """

    tokens_per_second: float
    ms_per_token: float
    ms_to_first: float
    requests: int
    failed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """One concurrency, over so many pairs of blocks, with ratios of on to off.

    `time_per_token` is a ratio of speeds, so that above 1 is faster here, too; None if all answers of a block had one
    token.  `tokens_per_step` is per request with speculation on, bonus included; None if the server counted no step.
    `acceptance_rate` is accepted / drafted; None if nothing was drafted.
    """

    concurrency: int
    off: ModeFigures
    on: ModeFigures
    throughput: Ratio
    time_per_token: Ratio | None
    tokens_per_step: float | None
    acceptance_rate: float | None
    pairs: int

    @property
    def advice(self) -> str | None:
        """Return what would show a difference; None if one is shown."""
        if self.throughput.is_known:
            return None
        begun = f"{self.concurrency} in flight: no difference shown"
        if self.throughput.low is None:
            return f"{begun} by a single pair of blocks; give --pairs 3 or more"
        if self.throughput.needed is None:
            return f"{begun}; if there is one, it is too small for {MOST_PAIRS} pairs of such blocks"
        more = self.throughput.needed - self.pairs
        prompts = more * (self.on.requests + self.off.requests) // self.pairs
        return (
            f"{begun}; about {prompts} more prompts would show one of this size: add them, and give --until, which "
            f"goes on while there are prompts, or --pairs {self.throughput.needed}, for blocks as long as these"
        )

    def as_dict(self) -> dict[str, object]:
        """Return the row ready for JSON."""
        return {**asdict(self), "verdict": self.throughput.verdict, "advice": self.advice}


def look_counts(first: int, most: int) -> list[int]:
    """Return the numbers of pairs after which a run with `--until` looks: `first`, doubled up to `most`."""
    found = [min(first, most)]
    while found[-1] < most:
        found.append(min(2 * found[-1], most))
    return found


def rows(measured: Sequence[Measured], first_look: int | None = None) -> list[Comparison]:
    """Return one row for each concurrency, in the order in which they ran.

    If a run with several `look_counts` looked first after `first_look` pairs, the looks share `LEVEL`, each with half
    of what the one before had.
    """
    return [
        _row([each for each in measured if each.block.concurrency == concurrency], first_look)
        for concurrency in dict.fromkeys(each.block.concurrency for each in measured)
    ]


def errors(measured: Sequence[Measured]) -> list[str]:
    """Return the distinct errors of requests in order of occurrence."""
    return list(dict.fromkeys(answer.error for each in measured for answer in each.answers if answer.error))


def ratio(logarithms: Sequence[float], level: float = LEVEL) -> Ratio:
    """Return the ratio from its logarithms, one per pair of blocks."""
    mean = statistics.fmean(logarithms)
    pairs = len(logarithms)
    if pairs < 2:
        return Ratio(math.exp(mean), None, None)
    from scipy.stats import t

    deviation = statistics.stdev(logarithms)
    reach = float(t.ppf(1 - level / 2, pairs - 1)) * deviation / math.sqrt(pairs)
    needed = None if reach < abs(mean) else _needed(abs(mean), deviation, pairs)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), needed)


def _needed(mean: float, deviation: float, pairs: int) -> int | None:
    """Return the fewest pairs, above `pairs`, that would probably show a mean logarithm of this size."""
    from scipy.stats import t

    for count in range(pairs + 1, MOST_PAIRS + 1):
        quantiles = float(t.ppf(1 - LEVEL / 2, count - 1) + t.ppf(POWER, count - 1))
        if quantiles * deviation / math.sqrt(count) < mean:
            return count
    return None


def _row(measured: Sequence[Measured], first_look: int | None) -> Comparison:
    off = _of_mode(measured, "off")
    on = _of_mode(measured, "on")
    pairs = list(zip(off, on, strict=True))
    counts = {name: sum(each.counts[name] for each in on) for name in on[0].counts}
    steps = counts["target_steps"]
    drafted = counts["proposed"]
    looked = 0 if first_look is None else len(look_counts(first_look, len(pairs)))
    return Comparison(
        concurrency=measured[0].block.concurrency,
        off=_side(off),
        on=_side(on),
        throughput=ratio([math.log(_throughput(b) / _throughput(a)) for a, b in pairs], LEVEL / 2**looked),
        time_per_token=_speed_ratio([(_ms_per_token([a]), _ms_per_token([b])) for a, b in pairs]),
        tokens_per_step=counts["emitted"] / steps if steps else None,
        acceptance_rate=counts["accepted"] / drafted if drafted else None,
        pairs=len(pairs),
    )


def _of_mode(measured: Sequence[Measured], mode: Mode) -> list[Measured]:
    return sorted((each for each in measured if each.block.mode == mode), key=lambda each: each.block.pair)


def _side(measured: Sequence[Measured]) -> ModeFigures:
    answers = [answer for each in measured for answer in each.answers]
    answered = [answer for answer in answers if answer.error is None]
    return ModeFigures(
        tokens_per_second=statistics.median(_throughput(each) for each in measured),
        ms_per_token=_ms_per_token(measured),
        ms_to_first=1e3 * statistics.median([answer.first for answer in answered] or [0.0]),
        requests=len(answers),
        failed=len(answers) - len(answered),
    )


def _throughput(measured: Measured) -> float:
    return sum(answer.num_tokens for answer in measured.answers if answer.error is None) / measured.seconds


def _ms_per_token(measured: Sequence[Measured]) -> float:
    """Return the median over the requests with more than one token."""
    answers = [answer for each in measured for answer in each.answers if answer.error is None and answer.num_tokens > 1]
    times = [1e3 * (answer.last - answer.first) / (answer.num_tokens - 1) for answer in answers]
    return statistics.median(times or [0.0])


def _speed_ratio(times: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the speed ratio from pairs of times per token, off and on."""
    if any(off <= 0 or on <= 0 for off, on in times):
        return None
    return ratio([math.log(off / on) for off, on in times])
