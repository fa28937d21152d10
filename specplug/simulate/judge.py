"""Judge: runs policies, constant lengths, peers and the clairvoyant on the same servers and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from specplug.simulate.arrivals import TrafficSpec, shuffled
from specplug.simulate.clairvoyant import Clairvoyant
from specplug.simulate.deciding import Policy, PolicyDecider
from specplug.simulate.disturbance import Disturbance
from specplug.simulate.engine import Decider, Limits, Simulation
from specplug.simulate.modes import Mode
from specplug.simulate.outcome import Outcome
from specplug.simulate.peers import PEERS, PeerSetup
from specplug.simulate.profile import Profile
from specplug.simulate.surface import Regime, StepWork, Surface
from specplug.simulate.trajectories import Trajectories

CLAIRVOYANT = Policy("clairvoyant", "clairvoyant")
NONE = Policy("none", "none")

REFERENCE_ROWS = 64
"""Batch size at which a server's capacity is stated."""

GAMMAS = (1, 3, 7, 15, 31)
"""The constant draft lengths that are compared, as far as gamma allows."""


@dataclass(frozen=True, slots=True)
class Case:
    """A server under one traffic.

    Attributes:
        surface, mode, traffic: what is simulated.
        requests: number of requests.
        max_running: most requests at a time under open traffic.
        limits: the scheduler's.
        disturbance: noise and drift.
        seed: seed of the order of requests, of arrivals, and of peers.
    """

    surface: Surface
    mode: Mode
    traffic: TrafficSpec
    requests: int
    max_running: int = 256
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    disturbance: Disturbance = Disturbance()  # noqa: RUF009 - frozen
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one policy in one case."""

    case: Case
    policy: Policy
    outcome: Outcome


def fixed(gamma: int) -> Policy:
    """Return a constant draft length."""
    return Policy(f"fixed {gamma}", "fixed", {"gamma": gamma})


def field_of(mode: Mode, peers: Iterable[str] = PEERS) -> list[Policy]:
    """Return what a policy is compared with in a mode: none, constant lengths, peers and the clairvoyant."""
    lengths = sorted({length for length in GAMMAS if length < mode.gamma} | {mode.gamma} - {0})
    adaptive = [Policy(name, name, peer=name) for name in peers if PEERS[name].applies(mode)]
    return [NONE, *map(fixed, lengths), *adaptive, CLAIRVOYANT]


def capacity(surface: Surface, trajectories: Trajectories, limits: Limits) -> float:
    """Return the requests per second that a server completes without speculation, with 64 of them running."""
    prompt = float(trajectories.prompts.mean()) * (1 - limits.cached_share)
    output = float(trajectories.outputs.mean())
    context = float(trajectories.prompts.mean()) + limits.cached_context + output / 2
    rows = REFERENCE_ROWS
    prefill = StepWork(0, 0, 0, 0, Regime.EAGER, round(prompt), round(prompt * (context - prompt / 2)))
    decoding = output / rows * surface.seconds(StepWork(rows, rows, round(rows * context)))
    return 1 / (surface.seconds(prefill) + decoding)


def assess(case: Case, policy: Policy, trajectories: Trajectories) -> Outcome:
    """Run one policy in one case.

    Raises:
        SettingsError, PluginError: the policy is unknown, or its options are wrong.
    """
    items = shuffled(trajectories.outputs.size, case.requests, case.seed)
    rate = capacity(case.surface, trajectories, case.limits)
    traffic = case.traffic.build(items, rate, case.max_running, case.seed)
    decider: Decider
    if policy is CLAIRVOYANT:
        decider = Clairvoyant(case.surface, case.mode, trajectories)
    else:
        profile = Profile(case.surface, case.mode, trajectories)
        decider = PolicyDecider(policy, PeerSetup(profile, seed=case.seed), items.size)
    clock = replace(case.disturbance, seed=case.disturbance.seed + case.seed).start()
    return Simulation(traffic, trajectories, case.surface, case.mode, decider, clock, case.limits).run()


def judge(
    cases: Sequence[Case],
    policies: Sequence[Policy],
    trajectories: Trajectories,
    *,
    peers: Sequence[str] = tuple(PEERS),
    progress: Callable[[], None] = lambda: None,
) -> list[Verdict]:
    """Run the policies and what they are compared with in all cases; `progress` is called after each run."""
    verdicts = []
    for case in cases:
        for policy in (*field_of(case.mode, peers), *policies):
            verdicts.append(Verdict(case, policy, assess(case, policy, trajectories)))
            progress()
    return verdicts
