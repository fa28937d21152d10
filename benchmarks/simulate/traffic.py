"""Traffic of one run: the order of requests, how many run at a time, and how step times scatter and drift."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from benchmarks.simulate.trajectories import Array

RAMP = (8, 128, 8)
"""Concurrency of the three parts of a ramp."""

STALL_SHARE, STALL = 1e-3, 2.0
"""The share of steps that stall (a pause of the host, a late client), and by how many times their own time."""

DRIFT_SECONDS = 60.0
"""Period of the drift."""


def shuffled(items: int, requests: int, seed: int) -> Array:
    """Return [R] int64, indices of items in random order; each is used again only after all others."""
    random = np.random.default_rng(seed)
    rounds = -(-requests // max(1, items))
    return np.concatenate([random.permutation(items) for _ in range(rounds)])[:requests].astype(np.int64)


def concurrency(traffic: str) -> int:
    """Return the N of `steady:N` and `rollouts:N`, and the most requests at a time of `ramp`.

    Raises:
        ValueError: it is none of them, or N is not from 1 to 512.
    """
    kind, _, level = traffic.partition(":")
    if traffic == "ramp":
        return max(RAMP)
    if kind not in ("steady", "rollouts") or not 1 <= int(level) <= 512:
        raise ValueError(traffic)
    return int(level)


def ends_together(traffic: str) -> bool:
    """Return whether the time until the last request has ended counts, as in rollouts."""
    return traffic.startswith("rollouts:")


def limits_of(traffic: str, requests: int) -> Array:
    """Return [R] int64, the most requests that run at a time from the admission of each request on.

    The middle part of a ramp has most of the requests, so that the parts take similar times.  The first request of a
    rollout is admitted once no other runs.
    """
    if traffic != "ramp":
        most = np.full(requests, concurrency(traffic), np.int64)
        if ends_together(traffic):
            most[:: concurrency(traffic)] = 1
        return most
    shares = np.array([0.1, 0.8, 0.1])
    counts = np.diff(np.rint(np.concatenate([[0.0], shares.cumsum()]) * requests).astype(np.int64))
    return np.repeat(np.array(RAMP, np.int64), counts)


class Disturbance(NamedTuple):
    """How step times differ from their surface's.

    Attributes:
        noise: standard deviation of the logarithm of a step's time.
        drift: amplitude of a slow change (clocks, neighbours), as a share; it is a sine of simulated time.
    """

    noise: float = 0.02
    drift: float = 0.05


NO_DISTURBANCE = Disturbance(noise=0.0, drift=0.0)


class Clock:
    """Simulated time of one run; `seed` is that of noise, stalls and the drift's phase.

    Attributes:
        now: seconds since the start.
    """

    def __init__(self, disturbance: Disturbance, seed: int = 0) -> None:
        self._given, self._random = disturbance, np.random.default_rng(seed)
        self._phase = self._random.uniform(0.0, 2 * math.pi)
        self.now = 0.0

    def spend(self, seconds: float) -> float:
        """Let a step of `seconds` on the surface pass; return the time that it took."""
        given = self._given
        if given.drift:
            seconds *= 1 + given.drift * math.sin(self._phase + 2 * math.pi * self.now / DRIFT_SECONDS)
        if given.noise:
            stalls = self._random.random() < STALL_SHARE
            seconds *= math.exp(given.noise * self._random.standard_normal()) + STALL * stalls
        self.now += seconds
        return seconds
