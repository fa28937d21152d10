"""What a peer is built from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.simulate.profile import Profile
from benchmarks.simulate.trajectories import Array


@dataclass(slots=True)
class Features:
    """Features of the drafts of the current step that `Draft` does not carry.

    Attributes:
        matches: [B] uint8, see `Trajectories.matches`.
    """

    matches: Array = field(default_factory=lambda: np.zeros(0, np.uint8))


@dataclass(frozen=True, slots=True)
class PeerSetup:
    """What one peer is built from, for one run.

    Attributes:
        profile: the server's profile; its `mode` is the engine's.
        features: features of the current step's drafts, for its trim half.
        seed: seed of the peer's own random numbers.
    """

    profile: Profile
    features: Features = field(default_factory=Features)
    seed: int = 0
