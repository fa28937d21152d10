"""Acceptance of draft tokens by position, modelled, replayed or counted, and the tokens per step that follow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any

from specplug.errors import SettingsError, describe


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """What happens at each draft position of one request's step, as probabilities over all its steps.

    Steps without a draft, or with a shorter one, count as well: they verify and accept nothing at that position.
    `survival` is the probability that the draft tokens up to and including a position are accepted, and never rises;
    `verified` that one is verified there.  `source` says for people where the figures are from.  A model drafts the
    first `model_tokens` at a cost, of all if it is None; lookup drafts the others.
    """

    survival: tuple[float, ...]
    verified: tuple[float, ...]
    source: str
    model_tokens: int | None = None

    @property
    def longest(self) -> int:
        """The longest draft that the figures describe."""
        return len(self.survival)

    @property
    def rates(self) -> tuple[float, ...]:
        """How often the token at each position is accepted where those before it are."""
        before = (1.0, *self.survival)
        return tuple(now / then if then else 0.0 for now, then in zip(self.survival, before, strict=False))

    def drafted_by_model(self, gamma: int) -> int:
        """Return the tokens of a draft of `gamma` tokens that a model drafts."""
        return gamma if self.model_tokens is None else min(gamma, self.model_tokens)

    def tau(self, gamma: int) -> float:
        """Return the tokens emitted per step, bonus included, with drafts of at most `gamma` tokens."""
        return 1 + sum(self.survival[:gamma])

    def tokens(self, gamma: int) -> float:
        """Return the tokens that the target computes per step: the verified draft tokens and one more."""
        return 1 + sum(self.verified[:gamma])

    def padded(self) -> DraftAcceptance:
        """Return the same acceptance where every row is padded to gamma, so that each position is computed."""
        return replace(self, verified=(1.0,) * self.longest)


def modelled(alpha: float, gamma: int) -> DraftAcceptance:
    """Return drafts of `gamma` tokens, each accepted with probability `alpha` if those before it were."""
    return by_position([alpha] * gamma, f"modelled, alpha = {alpha:.4g} at every position")


def by_position(rates: Sequence[float], source: str = "given by position") -> DraftAcceptance:
    """Return drafts whose token at each position is accepted at this rate if those before it were.

    A rate that is no probability raises `SettingsError`.
    """
    for rate in rates:
        if not 0 <= rate <= 1:
            raise SettingsError.build("bad acceptance", found=rate, expected="probabilities, from 0 to 1")
    return DraftAcceptance(tuple(accumulate(rates, mul)), (1.0,) * len(rates), source)


def read_rates(text: str, who: str) -> DraftAcceptance:
    """Read rates by position, as for `by_position`: "0.8,0.7,0.6"."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        expected = "such as 0.8,0.7,0.6"
        raise SettingsError.build("bad acceptance", who=who, found=repr(text), expected=expected) from None
    return by_position(rates)


def counted(accepted: Sequence[float], verified: Sequence[float], steps: float, source: str) -> DraftAcceptance:
    """Return the shares of `steps` in which the token at each position was accepted and verified."""
    shares = [min(1.0, count / steps) for count in verified]
    survival = accumulate((min(kept / steps, share) for kept, share in zip(accepted, shares, strict=False)), min)
    return DraftAcceptance(tuple(survival), tuple(shares), source)


def expected_tau(alpha: float, gamma: int) -> float:
    """Return (1 - alpha^(gamma + 1)) / (1 - alpha), the tokens emitted per step (Leviathan et al., 2211.17192, eq. 1).

    The sum of powers is the same number, and defined at alpha = 1.
    """
    return sum(alpha**position for position in range(gamma + 1))


def acceptance_for(tau: float, gamma: int) -> float | None:
    """Return the least alpha of which `expected_tau` reaches `tau`, to within 1e-9; None if no alpha does."""
    if tau > gamma + 1:
        return None
    low, high = 0.0, 1.0
    while tau > 1 and high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tau(middle, gamma) >= tau else (middle, high)
    return high if tau > 1 else 0.0


def read_replay(path: Path) -> list[DraftAcceptance]:
    """Read the replay of one proposer.  Of several batch sizes the smallest counts, where a policy cuts drafts least.

    A replay with an engine's own drafter has three: of the drafter alone, of lookup alone, and of both.

    Another file, several proposers or modes, trees, and no drafts raise `SettingsError`.
    """
    who = f"--replay {path}"
    try:
        runs = _runs(json.loads(path.read_bytes())["runs"], who)
        rows = [[row for workload in run["workloads"].values() for row in workload["histogram"]] for run in runs]
        found = [from_histogram(of, _source(run)) for of, run in zip(rows, runs, strict=True)]
        if len(found) > 1:
            found = [replace(it, model_tokens=len(run["engine_rates"])) for it, run in zip(found, runs, strict=True)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Write one with: specplug replay --json > replay.json"
        raise SettingsError.build("no JSON of a replay", who=who, found=describe(error), remedy=remedy) from error
    if not all(each.longest for each in found):
        raise SettingsError.build("nothing was drafted", who=who, remedy="Replay with --gamma above 0, and a proposer")
    return found


def from_histogram(rows: Iterable[Sequence[int]], source: str) -> DraftAcceptance:
    """Return the shares of steps by position, from rows of [verified, accepted, emitted, steps].

    A step that ended its output counts as accepted what it emitted, so that tau is the replay's.
    """
    steps = 0
    lengths: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for verified, _, emitted, count in rows:
        steps += count
        lengths[verified] += count
        accepted[emitted - 1] += count
    positions = range(max(lengths, default=0))
    survived, drafted = (
        [sum(each[n] for n in each if n > place) for place in positions] for each in (accepted, lengths)
    )
    return counted(survived, drafted, steps, source)


def _runs(runs: Sequence[dict[str, Any]], who: str) -> list[dict[str, Any]]:
    """Return the runs at the smallest batch size of the only proposer and mode, without and with another drafter."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        kinds.setdefault(f"{run['label']}, {run['mode']}", []).append(run)
    if len(kinds) != (3 if any(run.get("engine_rates") for run in runs) else 1):
        found, remedy = "; ".join(kinds) or "no run", "Replay with one --proposer and one --mode"
        raise SettingsError.build("a plan is for one proposer in one mode", who=who, found=found, remedy=remedy)
    if any(run["trees"] for run in runs):
        raise SettingsError.build("a plan is for chains", who=who, found="trees", remedy="Replay without --trees")
    return [min(of, key=lambda run: min(run["batches"])) for of in kinds.values()]


def _source(run: dict[str, Any]) -> str:
    return f"replay of {run['label']}, {run['mode']}, gamma {run['gamma']}, at batch size {min(run['batches'])}"
