"""The simulation's survival peer prices steps as vLLM's adaptive verification does from the same profile."""

from __future__ import annotations

import numpy as np
from vllm.v1.worker.gpu.spec_decode.adaptive_verification import build_cost_tables_from_curves

from benchmarks.simulate.modes import CAPTURED_TOKENS, modes
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.surface import SURFACES
from benchmarks.simulate.survival import _table
from benchmarks.simulate.trajectories import Trajectories


def test_cost_tables_equal_those_of_vllm():
    nothing = np.zeros(0, np.int64)
    empty = Trajectories(nothing, nothing, nothing, nothing, np.zeros((0, 7)), nothing, nothing, nothing)
    for surface in SURFACES.values():
        profile = Profile(surface, modes(7)["cut"], empty)
        curve = list(zip(*(column.tolist() for column in profile.verification), strict=True))
        _, theirs = build_cost_tables_from_curves([(1, 0.0)], curve, 1, curve[-1][0], CAPTURED_TOKENS[-1])
        np.testing.assert_allclose(_table(profile), theirs)
