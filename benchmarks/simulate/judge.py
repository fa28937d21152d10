"""Judge: compares policies with constant lengths, peers and the clairvoyant, on the same servers and traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.simulate.clairvoyant import Clairvoyant
from benchmarks.simulate.deciding import Policy, PolicyDecider
from benchmarks.simulate.engine import Limits, Simulation
from benchmarks.simulate.modes import Mode
from benchmarks.simulate.peers import PEERS
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.steps import Decider, Outcome
from benchmarks.simulate.surface import Surface
from benchmarks.simulate.traffic import Clock, Disturbance, ends_together, limits_of, shuffled
from benchmarks.simulate.trajectories import Trajectories

CEILING = "clairvoyant"
"""Label of the best that is possible, as far as is known."""

WEIGHTS = (1.0, 0.7, 0.5)
"""The weights that the clairvoyant tries, see `Clairvoyant`."""

NONE = Policy("none", "none")

GAMMAS = (1, 3, 7, 15, 31)
"""The constant draft lengths that are compared, as far as gamma allows."""

RATIOS = ("to_none", "to_best_fixed", "to_best_peer", "to_clairvoyant")
"""Ratios of a policy's goodput to those of others."""


@dataclass(frozen=True, slots=True)
class Case:
    """A server under one traffic."""

    surface: Surface
    mode: Mode
    traffic: str  # see `traffic.concurrency`
    requests: int
    limits: Limits = Limits()  # noqa: RUF009 - frozen
    disturbance: Disturbance = Disturbance()  # noqa: RUF009 - frozen
    seed: int = 0  # of the order of requests, and of the disturbance


Judged: TypeAlias = tuple[Case, dict[str, Outcome]]
"""A case, and the outcome of each policy by its label."""


def fixed(gamma: int) -> Policy:
    """Return the policy of a constant draft length."""
    return Policy(f"fixed {gamma}", "fixed", {"fixed": {"gamma": gamma}})


def field_of(mode: Mode, *, peers: bool = True) -> list[Policy]:
    """Return the policies that others are compared with in a mode: none, constant lengths and adaptive peers."""
    lengths = sorted({length for length in GAMMAS if length < mode.gamma} | {mode.gamma})
    cuts = mode.name != "padded"
    names = [name for name, peer in PEERS.items() if peers and (cuts or not peer.in_worker)]
    return [NONE, *map(fixed, lengths), *(Policy(name, name, peer=name) for name in names)]


def assess(case: Case, policy: Policy, trajectories: Trajectories) -> Outcome:
    """Run one policy in one case.

    Raises:
        SettingsError, PluginError: the policy is unknown, or its options are wrong.
    """
    profile = Profile(case.surface, case.mode, trajectories)
    return simulate(case, PolicyDecider(policy, profile, case.requests), trajectories)


def simulate(case: Case, decider: Decider, trajectories: Trajectories) -> Outcome:
    """Run one case with a decider."""
    items = shuffled(trajectories.outputs.size, case.requests, case.seed)
    most, clock = limits_of(case.traffic, case.requests), Clock(case.disturbance, case.seed)
    found = Simulation(items, most, trajectories, case.surface, case.mode, decider, clock, case.limits).run()
    if ends_together(case.traffic):
        found.steps.loaded[:] = True
    return found


def ceiling(case: Case, trajectories: Trajectories, others: Iterable[Outcome]) -> Outcome:
    """Return the best outcome in hindsight among `others` and the clairvoyant with each of its weights."""
    deciders = [Clairvoyant(case.surface, case.mode, trajectories, weight) for weight in WEIGHTS]
    found = [*others, *(simulate(case, decider, trajectories) for decider in deciders)]
    return max(found, key=lambda outcome: outcome.goodput)


def judge(
    cases: Iterable[Case],
    policies: Sequence[Policy],
    trajectories: Trajectories,
    *,
    peers: bool = True,
    progress: Callable[[str], None] = lambda run: None,
) -> Iterator[Judged]:
    """Run the policies, and all that they are compared with, in all cases; `progress` receives each run's name."""
    for case in cases:
        outcomes: dict[str, Outcome] = {}
        where = f"{case.surface.name}, {case.mode.name}, {case.traffic}"
        for policy in (*field_of(case.mode, peers=peers), *policies):
            progress(f"{where}: {policy.label}")
            outcomes[policy.label] = assess(case, policy, trajectories)
        progress(f"{where}: {CEILING}")
        outcomes[CEILING] = ceiling(case, trajectories, outcomes.values())
        yield case, outcomes


def report(judged: Iterable[Judged], policies: Sequence[str]) -> dict[str, Any]:
    """Return everything as JSON-serialisable data; `policies` are the labels of those under test."""
    comparisons: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    faults: dict[str, dict[str, int]] = {}
    for case, outcomes in judged:
        where: dict[str, Any] = {"surface": case.surface.name, "mode": case.mode.name}
        for label in policies:
            ratios = _ratios(label, {name: outcome.goodput for name, outcome in outcomes.items()})
            comparisons.append({"policy": label, **where, "traffic": case.traffic, **ratios})
        where |= {"lag": case.mode.lag, "gamma": case.mode.gamma, "traffic": case.traffic, "requests": case.requests}
        for label, outcome in outcomes.items():
            runs.append({**where, "policy": label, **outcome.figures()})
            for kind, count in outcome.faults.items():
                kinds = faults.setdefault(label, {})
                kinds[kind] = kinds.get(kind, 0) + count
    return {"simulated": True, "comparisons": comparisons, "faults": faults, "runs": runs}


def _ratios(label: str, goodput: dict[str, float]) -> dict[str, float | None]:
    """Return the ratios by the keys `RATIOS`; None without anything to compare with."""
    others = (
        [goodput[NONE.label]],
        [rate for name, rate in goodput.items() if name.startswith("fixed ")],
        [rate for name, rate in goodput.items() if name in PEERS],
        [goodput[CEILING]],
    )
    ratios = [goodput[label] / max(rates, default=math.nan) for rates in others]
    return {key: None if math.isnan(ratio) else ratio for key, ratio in zip(RATIOS, ratios, strict=True)}


def shown(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as a table in Markdown."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(key)) for key in keys] for row in rows]
    head = [key.replace("_", " ") for key in keys]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(keys), *cells])


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
