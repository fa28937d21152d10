"""Traffic: which recorded requests arrive when, and how many may run at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.simulate.trajectories import Array
from specplug.errors import SettingsError

RAMP = (8, 128, 8)
"""Concurrency of the three parts of a ramp."""

BURST_SHARE, BURST_SECONDS, BURST_FACTOR = 0.2, 10.0, 4.0
"""Bursty arrivals: share of the time in bursts, mean length of a burst, and its rate as a multiple of the mean one."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """R requests in order of arrival.

    Attributes:
        name: name of the traffic.
        items: [R] int64, index of each request's trajectory.
        arrivals: [R] float64, seconds since the start, ascending.
        limits: [R] int64, the most requests that run at a time from the admission of each request on.
        is_closed: whether a request waits until another one ends, so that only steps under full load count.
    """

    name: str
    items: Array
    arrivals: Array
    limits: Array
    is_closed: bool

    @property
    def max_running(self) -> int:
        """The most requests that run at a time."""
        return int(self.limits.max(initial=1))


def shuffled(items: int, requests: int, seed: int) -> Array:
    """Return [R] int64, indices of items in random order; each is used again only after all others."""
    random = np.random.default_rng(seed)
    rounds = -(-requests // max(1, items))
    return np.concatenate([random.permutation(items) for _ in range(rounds)])[:requests].astype(np.int64)


def steady(items: Array, concurrency: int) -> Traffic:
    """Return traffic that keeps a fixed number of requests running."""
    count = items.size
    return Traffic(f"steady {concurrency}", items, np.zeros(count), np.full(count, concurrency, np.int64), True)


def ramp(items: Array) -> Traffic:
    """Return traffic whose concurrency goes from 8 to 128 and back, a part of the requests each.

    The middle part has most of the requests, so that the parts take similar times.
    """
    shares = np.array([0.1, 0.8, 0.1])
    counts = np.diff(np.rint(np.concatenate([[0.0], shares.cumsum()]) * items.size).astype(np.int64))
    return Traffic("ramp", items, np.zeros(items.size), np.repeat(np.array(RAMP, np.int64), counts), True)


def poisson(items: Array, rate: float, max_running: int, seed: int) -> Traffic:
    """Return Poisson arrivals of `rate` requests per second."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, items.size)
    return _open(f"poisson {rate:.3g}/s", items, gaps.cumsum(), max_running)


def bursty(items: Array, rate: float, max_running: int, seed: int) -> Traffic:
    """Return arrivals of `rate` requests per second on average, from a Markov-modulated Poisson process of two states.

    A burst has `BURST_FACTOR` times the mean rate; the rest of the time has what remains of it.
    """
    random = np.random.default_rng(seed)
    rates = rate * (1 - BURST_SHARE * BURST_FACTOR) / (1 - BURST_SHARE), rate * BURST_FACTOR
    dwell = BURST_SECONDS * (1 - BURST_SHARE) / BURST_SHARE, BURST_SECONDS
    now, state, found = 0.0, 0, np.zeros(0)
    while found.size < items.size:
        length = random.exponential(dwell[state])
        arriving = random.poisson(rates[state] * length)
        found = np.append(found, np.sort(now + random.uniform(0.0, length, arriving)))
        now, state = now + length, 1 - state
    return _open(f"bursty {rate:.3g}/s", items, found[: items.size], max_running)


def _open(name: str, items: Array, arrivals: Array, max_running: int) -> Traffic:
    return Traffic(name, items, arrivals, np.full(items.size, max_running, np.int64), False)


@dataclass(frozen=True, slots=True)
class TrafficSpec:
    """Traffic as the command line names it: `steady:64`, `ramp`, `poisson:0.8`, `bursty:0.8`.

    Attributes:
        kind: one of the four.
        level: concurrency of steady traffic; for arrivals, the mean rate as a share of the server's capacity without
            speculation, see `benchmarks.simulate.judge.capacity`.
    """

    kind: str
    level: float = 0.0

    def __str__(self) -> str:
        return self.kind if self.kind == "ramp" else f"{self.kind}:{self.level:g}"

    @classmethod
    def parse(cls, text: str) -> TrafficSpec:
        """Return the traffic that a text names.

        Raises:
            SettingsError: it is malformed.
        """
        kind, _, level = text.strip().partition(":")
        try:
            spec = cls(kind, float(level) if kind != "ramp" else 0.0)
        except ValueError:
            spec = cls("")
        whole = spec.kind == "steady" and spec.level == int(spec.level) and 1 <= spec.level <= 512
        if not (whole or text.strip() == "ramp" or (spec.kind in ("poisson", "bursty") and spec.level > 0)):
            raise SettingsError.build(
                "unknown traffic",
                who="--traffic",
                found=repr(text),
                expected="steady:N with N from 1 to 512, ramp, poisson:LOAD or bursty:LOAD, such as bursty:0.8",
            )
        return spec

    def build(self, items: Array, capacity: float, max_running: int, seed: int) -> Traffic:
        """Return the traffic of some items on a server that completes `capacity` requests per second."""
        if self.kind == "steady":
            return steady(items, int(self.level))
        if self.kind == "ramp":
            return ramp(items)
        arrive = poisson if self.kind == "poisson" else bursty
        return arrive(items, self.level * capacity, max_running, seed)
