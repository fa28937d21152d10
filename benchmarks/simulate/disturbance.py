"""Noise and drift of step times."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

STALL_SHARE, STALL = 1e-3, 2.0
"""The share of steps that stall (a pause of the host, a late client), and by how many times their own time."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How step times differ from their surface's.

    Attributes:
        noise: standard deviation of the logarithm of a step's time.
        drift: amplitude of a slow change (clocks, neighbours), as a share; it is a sine of simulated time.
        period: the sine's period in seconds.
        seed: seed of noise, stalls and phase.
    """

    noise: float = 0.02
    drift: float = 0.05
    period: float = 60.0
    seed: int = 0

    def start(self) -> Clock:
        """Return the disturbed clock of one run."""
        return Clock(self)


NO_DISTURBANCE = Disturbance(noise=0.0, drift=0.0)


class Clock:
    """Simulated time of one run.

    Attributes:
        now: seconds since the start.
    """

    def __init__(self, disturbance: Disturbance) -> None:
        self._given, self._random = disturbance, np.random.default_rng(disturbance.seed)
        self._phase = self._random.uniform(0.0, 2 * math.pi)
        self.now = 0.0

    def spend(self, seconds: float) -> float:
        """Let a step of `seconds` on the surface pass; return the time that it took."""
        given = self._given
        if given.drift:
            seconds *= 1 + given.drift * math.sin(self._phase + 2 * math.pi * self.now / given.period)
        if given.noise:
            stalls = self._random.random() < STALL_SHARE
            seconds *= math.exp(given.noise * self._random.standard_normal()) + STALL * stalls
        self.now += seconds
        return seconds
