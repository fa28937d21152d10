"""Helpers of the simulation's tests: random trajectories, a surface that records its work, and planted policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.simulate.deciding import Policy, PolicyDecider
from benchmarks.simulate.engine import Limits, Simulation
from benchmarks.simulate.modes import Mode, modes
from benchmarks.simulate.peers import PEERS, Peer
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.steps import Outcome
from benchmarks.simulate.surface import LLAMA_8B, StepWork, Surface
from benchmarks.simulate.traffic import NO_DISTURBANCE, Clock, limits_of
from benchmarks.simulate.trajectories import Trajectories
from specplug.interfaces import Planner, PluginContext, Trimmer
from specplug.plugins.specs import PolicySpec
from specplug.types.plan import HostStats
from specplug.types.step import StepPlan

torch.set_num_threads(1)

UNCACHED = Limits(cached_share=0.0)
SURFACE = Surface("test", LLAMA_8B)


def random_trajectories(seed: int = 0, requests: int = 12, draft_length: int = 8, longest: int = 40) -> Trajectories:
    """Return trajectories of random drafts; at most the rest of an output is accepted."""
    random = np.random.default_rng(seed)
    outputs = random.integers(1, longest, requests)
    rest = np.concatenate([np.arange(size - 1, 0, -1) for size in outputs])
    lengths = random.integers(0, draft_length + 1, rest.size)
    accepted = np.minimum(np.minimum(random.geometric(0.4, rest.size) - 1, lengths), rest)
    inside = np.arange(draft_length) < lengths[:, None]
    confidence = np.where(inside, random.uniform(0.05, 1.0, (rest.size, draft_length)), 0.0).astype(np.float32)
    return Trajectories(
        prompts=random.integers(1, 300, requests),
        outputs=outputs,
        lengths=lengths.astype(np.uint8),
        accepted=accepted.astype(np.uint8),
        confidence=confidence,
        source=np.where(inside, 0, -1).astype(np.int8),
        matches=random.integers(0, 10, rest.size).astype(np.uint8),
        sources=np.array(["own text"]),
    )


class Recorder:
    """A surface that keeps the work of every step."""

    host = SURFACE.host

    def __init__(self) -> None:
        self.work: list[StepWork] = []

    def seconds(self, work: StepWork) -> float:
        self.work.append(work)
        return SURFACE.seconds(work)


def run(
    trajectories: Trajectories,
    policy: Policy,
    mode: Mode | str = "ragged",
    *,
    traffic: str = "",
    concurrency: int = 4,
    surface: Any = SURFACE,
    clock: Clock | None = None,
    limits: Limits = UNCACHED,
) -> Outcome:
    """Serve every item once; by default without noise."""
    chosen = modes(8)[mode] if isinstance(mode, str) else mode
    items = np.arange(trajectories.outputs.size)
    decider = PolicyDecider(policy, Profile(SURFACE, chosen, trajectories), items.size)
    most, clock = limits_of(traffic or f"steady:{concurrency}", items.size), clock or Clock(NO_DISTURBANCE)
    return Simulation(items, most, trajectories, surface, chosen, decider, clock, limits).run()


def fixed(gamma: int, **options: Any) -> Policy:
    return Policy("fixed", "fixed", {"fixed": {"gamma": gamma, **options}})


class Planted(Planner):
    """Plans what a function of the figures returns."""

    def __init__(self, plan: Callable[[HostStats], StepPlan]) -> None:
        self._plan = plan
        self.reports: list[Any] = []

    def plan(self, stats: HostStats) -> StepPlan:
        return self._plan(stats)

    def observe(self, report: Any) -> None:
        self.reports.append(report)


@contextmanager
def planted(planner: Planner, trimmer: Callable[[PluginContext], Trimmer] | None = None) -> Iterator[Policy]:
    """Register a planner as a peer, whose decisions have the mode's lag."""
    extra = {} if trimmer is None else {"trimmer": trimmer}
    spec = PolicySpec(name="planted", factory=lambda context: planner, summary="a test's", **extra)
    PEERS["planted"] = Peer(lambda profile: spec)
    try:
        yield Policy("planted", "planted", peer="planted")
    finally:
        del PEERS["planted"]
