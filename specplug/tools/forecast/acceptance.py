"""Acceptance of draft tokens by position, modelled, replayed or counted, and the tokens per step that follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import SettingsError, describe


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """Acceptance at each draft position of one request's step, as probabilities over all its steps.

    Steps without a draft, or with a shorter one, verify and accept nothing at that position.  `survival` is the
    probability that the draft tokens up to and including a position are accepted, and never rises; `verified` that one
    is verified there.  `source` says for people where the figures are from.  A model drafts the first `model_tokens` at
    a cost, or all if it is None; lookup drafts the others.
    """

    survival: tuple[float, ...]
    verified: tuple[float, ...]
    source: str
    model_tokens: int | None = None

    @property
    def rates(self) -> tuple[float, ...]:
        """How often the token at each position is accepted where those before it are."""
        before = (1.0, *self.survival)
        return tuple(now / then if then else 0.0 for now, then in zip(self.survival, before, strict=False))

    def tau(self, gamma: int) -> float:
        """Return the tokens emitted per step, bonus included, with drafts of at most `gamma` tokens."""
        return 1 + sum(self.survival[:gamma])

    def tokens(self, gamma: int) -> float:
        """Return the tokens that the target computes per step: the verified draft tokens and one more."""
        return 1 + sum(self.verified[:gamma])

    def lengths(self, gamma: int) -> list[tuple[int, float]]:
        """Return the numbers of draft tokens that a step verifies, up to `gamma`, each with its share of the steps."""
        reached = (1.0, *self.verified[:gamma], 0.0)
        shares = [now - later for now, later in pairwise(reached)]
        return [(length, share) for length, share in enumerate(shares) if share > 0]


def by_position(rates: Sequence[float], source: str = "given by position") -> DraftAcceptance:
    """Return drafts whose token at each position is accepted at this rate if those before it were."""
    return DraftAcceptance(tuple(accumulate(rates, mul)), (1.0,) * len(rates), source)


def read_rates(text: str, who: str) -> DraftAcceptance:
    """Read rates by position, as for `by_position`: "0.8,0.7,0.6"; others than probabilities raise `SettingsError`."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = [-1.0]
    if not all(0 <= rate <= 1 for rate in rates):
        expected = "probabilities from 0 to 1, such as 0.8,0.7,0.6"
        raise SettingsError.build("bad acceptance", who=who, found=repr(text), expected=expected)
    return by_position(rates)


def acceptance_of_counts(
    accepted: npt.ArrayLike, verified: npt.ArrayLike, steps: float, source: str
) -> DraftAcceptance:
    """Return the shares of `steps` in which the token at each position was accepted and verified."""
    shares = np.minimum(1.0, np.asarray(verified) / steps)
    survival = np.minimum.accumulate(np.minimum(shares, np.asarray(accepted) / steps))
    return DraftAcceptance(tuple(survival.tolist()), tuple(shares.tolist()), source)


def acceptance_for(tau: float, gamma: int) -> float | None:
    """Return the alpha of which drafts of `gamma` tokens emit `tau` tokens per step; None if no alpha does.

    The tokens per step are 1 + alpha + ... + alpha^gamma (Leviathan et al., 2211.17192, eq. 1).
    """
    if tau <= 1 or tau > gamma + 1:
        return 0.0 if tau <= 1 else None
    from scipy.optimize import brentq  # slow to import

    return float(brentq(np.poly1d([1.0] * gamma + [1.0 - tau]), 0.0, 1.0))


def read_replay(path: Path) -> list[DraftAcceptance]:
    """Read the replay of one proposer.  Of several batch sizes the smallest counts, where a policy cuts drafts least.

    A replay with an engine's own drafter has three: of the drafter alone, of lookup alone, and of both.

    Another file, several proposers or modes, trees, and no drafts raise `SettingsError`.
    """
    who = f"--replay {path}"
    try:
        runs = sorted(json.loads(path.read_bytes())["runs"], key=lambda run: -min(run["batches"]))
        kinds = {f"{run['label']}, {run['mode']}": run for run in runs}  # the last, of the smallest batch size
        if len(kinds) != (3 if any(run.get("engine_rates") for run in runs) else 1):
            found = "; ".join(kinds) or "no run"
            remedy = "Replay with one --proposer and one --mode"
            raise SettingsError.build("a plan is for one proposer in one mode", who=who, found=found, remedy=remedy)
        if any(run["trees"] for run in runs):
            raise SettingsError.build("a plan is for chains", who=who, found="trees", remedy="Replay without --trees")
        replayed = [from_histogram(run) for run in kinds.values()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "Write one with: specplug replay --json > replay.json"
        raise SettingsError.build("no JSON of a replay", who=who, found=describe(error), remedy=remedy) from error
    if not all(each.survival for each in replayed):
        raise SettingsError.build("nothing was drafted", who=who, remedy="Replay with --gamma above 0, and a proposer")
    return replayed if len(replayed) > 1 else [replace(replayed[0], model_tokens=None)]


def from_histogram(run: dict[str, Any]) -> DraftAcceptance:
    """Return the shares of a run's steps by position, from rows of [verified, accepted, emitted, steps].

    A step that ended its output counts as accepted what it emitted, so that tau is the replay's.
    """
    source = f"replay of {run['label']}, {run['mode']}, gamma {run['gamma']}, at batch size {min(run['batches'])}"
    rows = [row for workload in run["workloads"].values() for row in workload["histogram"]]
    verified, _, emitted, steps = np.array(rows).reshape(-1, 4).T
    places = np.arange(max(verified, default=0))[:, None]
    found = acceptance_of_counts((emitted - 1 > places) @ steps, (verified > places) @ steps, steps.sum(), source)
    return replace(found, model_tokens=len(run.get("engine_rates") or ()))
