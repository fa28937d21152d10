"""Report of a benchmark: both modes side by side for each concurrency, and ratios with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from specplug.bench.prompts import Mode
from specplug.bench.run import Measured


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed-up of the server by speculation.

    Attributes:
        mean: geometric mean over the pairs of blocks.
        low, high: 95 % interval by Student's t over the logarithms; None with fewer than two pairs.
    """

    mean: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Return "faster", "slower", or "no difference shown"."""
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "no difference shown"
        return "faster" if self.low > 1 else "slower"

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, slots=True)
class Side:
    """One mode's figures at one concurrency.

    Attributes:
        tokens_per_second: throughput of all requests together, median over the blocks.
        ms_per_token: time per output token after the first, median over the requests.
        ms_to_first: time to the first token, median over the requests.
        failed: requests without an answer, which the figures exclude.
    """

    tokens_per_second: float
    ms_per_token: float
    ms_to_first: float
    requests: int
    failed: int


@dataclass(frozen=True, slots=True)
class Row:
    """One concurrency.

    Attributes:
        throughput: ratio of tokens per second, on to off.
        time_per_token: ratio of speeds, so that above 1 is faster here, too; None if all answers of a block had one
            token.
        tokens_per_step: tokens per request and target step with speculation on, bonus included; None if the server
            counted no step.
        acceptance_rate: accepted / drafted; None if nothing was drafted.
    """

    concurrency: int
    off: Side
    on: Side
    throughput: Ratio
    time_per_token: Ratio | None
    tokens_per_step: float | None
    acceptance_rate: float | None

    def as_dict(self) -> dict[str, object]:
        """Return the row ready for JSON."""
        return {**asdict(self), "verdict": self.throughput.verdict}


def rows(measured: Sequence[Measured]) -> list[Row]:
    """Return one row for each concurrency, in the order in which they ran."""
    return [
        _row([each for each in measured if each.block.concurrency == concurrency])
        for concurrency in dict.fromkeys(each.block.concurrency for each in measured)
    ]


def errors(measured: Sequence[Measured]) -> list[str]:
    """Return the distinct errors of requests in order of occurrence."""
    return list(dict.fromkeys(answer.error for each in measured for answer in each.answers if answer.error))


def ratio(logarithms: Sequence[float]) -> Ratio:
    """Return the ratio from its logarithms, one per pair of blocks."""
    mean = statistics.fmean(logarithms)
    if len(logarithms) < 2:
        return Ratio(math.exp(mean), None, None)
    from scipy.stats import t

    error = statistics.stdev(logarithms) / math.sqrt(len(logarithms))
    reach = float(t.ppf(0.975, len(logarithms) - 1)) * error
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def _row(measured: Sequence[Measured]) -> Row:
    off, on = (_of_mode(measured, "off"), _of_mode(measured, "on"))
    pairs = list(zip(off, on, strict=True))
    counts = {name: sum(each.counts[name] for each in on) for name in on[0].counts}
    steps, drafted = counts["target_steps"], counts["proposed"]
    return Row(
        concurrency=measured[0].block.concurrency,
        off=_side(off),
        on=_side(on),
        throughput=ratio([math.log(_throughput(b) / _throughput(a)) for a, b in pairs]),
        time_per_token=_speed_ratio([(_ms_per_token([a]), _ms_per_token([b])) for a, b in pairs]),
        tokens_per_step=counts["emitted"] / steps if steps else None,
        acceptance_rate=counts["accepted"] / drafted if drafted else None,
    )


def _of_mode(measured: Sequence[Measured], mode: Mode) -> list[Measured]:
    found = [each for each in measured if each.block.mode == mode]
    return sorted(found, key=lambda each: each.block.pair)


def _side(measured: Sequence[Measured]) -> Side:
    answers = [answer for each in measured for answer in each.answers]
    answered = [answer for answer in answers if answer.error is None]
    return Side(
        tokens_per_second=statistics.median(_throughput(each) for each in measured),
        ms_per_token=_ms_per_token(measured),
        ms_to_first=1e3 * statistics.median([answer.first for answer in answered] or [0.0]),
        requests=len(answers),
        failed=len(answers) - len(answered),
    )


def _throughput(measured: Measured) -> float:
    return sum(answer.tokens for answer in measured.answers if answer.error is None) / measured.seconds


def _ms_per_token(measured: Sequence[Measured]) -> float:
    """Return the median over the requests with more than one token."""
    answers = [answer for each in measured for answer in each.answers if answer.error is None and answer.tokens > 1]
    times = [1e3 * (answer.last - answer.first) / (answer.tokens - 1) for answer in answers]
    return statistics.median(times or [0.0])


def _speed_ratio(times: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the speed ratio from pairs of times per token, off and on."""
    if any(off <= 0 or on <= 0 for off, on in times):
        return None
    return ratio([math.log(off / on) for off, on in times])
