"""Acceptance of draft tokens by position, modelled or measured, and the tokens per step that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from specplug.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What happens at each draft position of one request's step, as probabilities over all its steps.

    Steps without a draft, or with a shorter one, count as well: they verify and accept nothing at that position.

    Attributes:
        survival: the probability that the draft tokens up to and including this position are accepted; never rising.
        verified: the probability that a draft token is verified at this position; at least `survival`.
        source: where the figures are from, for people.
    """

    survival: tuple[float, ...]
    verified: tuple[float, ...]
    source: str

    @property
    def longest(self) -> int:
        """The longest draft that the figures describe."""
        return len(self.survival)

    def tau(self, gamma: int) -> float:
        """Return the tokens emitted per step, bonus included, with drafts of at most `gamma` tokens."""
        return 1 + sum(self.survival[:gamma])

    def tokens(self, gamma: int) -> float:
        """Return the tokens that the target computes per step: the verified draft tokens and one more."""
        return 1 + sum(self.verified[:gamma])

    def padded(self) -> Acceptance:
        """Return the same acceptance where every row is padded to gamma, so that each position is computed."""
        return replace(self, verified=(1.0,) * self.longest)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures ready for JSON."""
        return {"source": self.source, "survival": list(self.survival), "verified": list(self.verified)}


def modelled(alpha: float, gamma: int) -> Acceptance:
    """Return drafts of `gamma` tokens, each accepted with probability `alpha` if those before it were."""
    return by_position([alpha] * gamma, f"modelled, alpha = {alpha:.4g} at every position")


def by_position(rates: Sequence[float], source: str = "given by position") -> Acceptance:
    """Return drafts whose token at each position is accepted at this rate if those before it were.

    Raises:
        SettingsError: a rate is no probability.
    """
    for rate in rates:
        if not 0 <= rate <= 1:
            raise SettingsError.build("bad acceptance", found=rate, expected="probabilities, from 0 to 1")
    return Acceptance(tuple(accumulate(rates, mul)), (1.0,) * len(rates), source)


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
