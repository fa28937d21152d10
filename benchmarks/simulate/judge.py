"""Judge: runs policies, constant lengths, peers and the clairvoyant on the same servers and traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulate.arrivals import TrafficSpec, shuffled
from benchmarks.simulate.clairvoyant import Clairvoyant
from benchmarks.simulate.deciding import Policy, PolicyDecider
from benchmarks.simulate.disturbance import Disturbance
from benchmarks.simulate.engine import Limits, Simulation
from benchmarks.simulate.modes import Mode
from benchmarks.simulate.outcome import Outcome
from benchmarks.simulate.peers import PEERS, PeerSetup
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.step import Decider
from benchmarks.simulate.surface import Regime, StepWork, Surface
from benchmarks.simulate.trajectories import Trajectories

CEILING = "clairvoyant"
"""Label of the best that is possible, as far as is known."""

WEIGHTS = (1.0, 0.7, 0.5)
"""The weights that the clairvoyant tries, see `Clairvoyant`."""

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
    """The outcome of one policy, named by its label, in one case."""

    case: Case
    label: str
    outcome: Outcome


def fixed(gamma: int) -> Policy:
    """Return the policy of a constant draft length."""
    return Policy(f"fixed {gamma}", "fixed", {"fixed": {"gamma": gamma}})


def field_of(mode: Mode, peers: Iterable[str] = PEERS) -> list[Policy]:
    """Return the policies that others are compared with in a mode: none, constant lengths and adaptive peers."""
    lengths = sorted({length for length in GAMMAS if length < mode.gamma} | {mode.gamma} - {0})
    adaptive = [Policy(name, name, peer=name) for name in peers if PEERS[name].applies(mode)]
    return [NONE, *map(fixed, lengths), *adaptive]


def capacity(surface: Surface, trajectories: Trajectories, limits: Limits) -> float:
    """Return the requests per second that a server completes without speculation, with 64 of them running."""
    prompt, output = float(trajectories.prompts.mean()), float(trajectories.outputs.mean())
    context = prompt + limits.cached_context + output / 2
    decoding = StepWork(REFERENCE_ROWS, REFERENCE_ROWS, round(REFERENCE_ROWS * context))
    size = limits.step_tokens - REFERENCE_ROWS
    mixed = decoding._replace(regime=Regime.EAGER, prefill_tokens=size, prefill_pairs=round(size * context))
    per_step = surface.seconds(decoding)
    per_prompt_token = (surface.seconds(mixed) - per_step) / size
    return 1 / (prompt * (1 - limits.cached_share) * per_prompt_token + output * per_step / REFERENCE_ROWS)


def assess(case: Case, policy: Policy, trajectories: Trajectories) -> Outcome:
    """Run one policy in one case.

    Raises:
        SettingsError, PluginError: the policy is unknown, or its options are wrong.
    """
    setup = PeerSetup(Profile(case.surface, case.mode, trajectories), seed=case.seed)
    return simulate(case, PolicyDecider(policy, setup, case.requests), trajectories)


def simulate(case: Case, decider: Decider, trajectories: Trajectories) -> Outcome:
    """Run one case with a decider."""
    items = shuffled(trajectories.outputs.size, case.requests, case.seed)
    rate = capacity(case.surface, trajectories, case.limits)
    traffic = case.traffic.build(items, rate, case.max_running, case.seed)
    clock = replace(case.disturbance, seed=case.disturbance.seed + case.seed).start()
    return Simulation(traffic, trajectories, case.surface, case.mode, decider, clock, case.limits).run()


def ceiling(case: Case, trajectories: Trajectories, others: Iterable[Outcome]) -> Outcome:
    """Return the best outcome in hindsight among `others` and the clairvoyant with each of its weights."""
    deciders = [Clairvoyant(case.surface, case.mode, trajectories, weight) for weight in WEIGHTS]
    return max([*others, *(simulate(case, decider, trajectories) for decider in deciders)], key=lambda it: it.merit)


def judge(
    cases: Sequence[Case],
    policies: Sequence[Policy],
    trajectories: Trajectories,
    *,
    peers: Sequence[str] = tuple(PEERS),
    progress: Callable[[], None] = lambda: None,
) -> list[Verdict]:
    """Run the policies, and all that they are compared with, in all cases; `progress` is called after each policy."""
    verdicts: list[Verdict] = []
    for case in cases:
        outcomes: dict[str, Outcome] = {}
        for policy in (*field_of(case.mode, peers), *policies):
            outcomes[policy.label] = assess(case, policy, trajectories)
            progress()
        outcomes[CEILING] = ceiling(case, trajectories, outcomes.values())
        progress()
        verdicts += [Verdict(case, label, outcome) for label, outcome in outcomes.items()]
    return verdicts


def runs_of(cases: Sequence[Case], policies: int, peers: Sequence[str] = tuple(PEERS)) -> int:
    """Return how often `judge` calls `progress`."""
    return sum(len(field_of(case.mode, peers)) + policies + 1 for case in cases)


def is_constant(label: str) -> bool:
    """Return whether a policy of the field always plans the same draft length."""
    return label == NONE.label or label.startswith("fixed ")
