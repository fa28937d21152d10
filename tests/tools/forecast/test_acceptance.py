"""Tokens per step from acceptance: against every outcome of small drafts, and properties that hold for all."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import SettingsError
from specplug.tools.forecast.acceptance import acceptance_for, by_position, read_rates

PROBABILITIES = st.floats(0, 1)


def enumerated_tau(rates: list[float]) -> float:
    """Return the mean of 1 + accepted tokens over all outcomes of judging every draft token by itself."""
    total = 0.0
    for outcome in itertools.product((True, False), repeat=len(rates)):
        probability = math.prod(rate if kept else 1 - rate for rate, kept in zip(rates, outcome, strict=True))
        accepted = len(list(itertools.takewhile(bool, outcome)))
        total += probability * (1 + accepted)
    return total


@given(st.lists(PROBABILITIES, max_size=6))
def test_tau_is_the_mean_over_all_outcomes(rates):
    found = by_position(rates)
    assert by_position(found.rates).survival == pytest.approx(found.survival)
    for gamma in range(len(rates) + 1):
        assert found.tau(gamma) == pytest.approx(enumerated_tau(rates[:gamma]))
        assert found.tokens(gamma) == gamma + 1


def tau_of(alpha: float, gamma: int) -> float:
    return by_position([alpha] * gamma).tau(gamma)


@given(st.floats(0, 0.999), st.integers(0, 40))
def test_tau_of_a_constant_alpha_has_a_closed_form(alpha, gamma):
    assert tau_of(alpha, gamma) == pytest.approx((1 - alpha ** (gamma + 1)) / (1 - alpha))
    assert tau_of(1.0, gamma) == gamma + 1


@given(PROBABILITIES, st.integers(1, 30))
def test_alpha_is_found_from_tau(alpha, gamma):
    found = acceptance_for(tau_of(alpha, gamma), gamma)
    assert found is not None
    assert tau_of(found, gamma) == pytest.approx(tau_of(alpha, gamma), abs=1e-5)
    assert found <= alpha + 1e-8


def test_no_alpha_gives_more_than_a_whole_draft_and_the_bonus():
    assert acceptance_for(4.01, 3) is None
    assert acceptance_for(4.0, 3) == pytest.approx(1.0)
    assert acceptance_for(1.0, 3) == acceptance_for(0.5, 3) == 0.0


def test_short_drafts_compute_fewer_tokens():
    found = by_position([0.5, 0.5])
    short = type(found)(found.survival, (0.6, 0.3), "short drafts")
    assert short.tokens(2) == pytest.approx(1.9)
    assert short.tau(2) == 1.75


@pytest.mark.parametrize("rate", ["-0.1", "1.1", "nan", "x", ""])
def test_rates_are_probabilities(rate):
    with pytest.raises(SettingsError, match=r"--engine-drafter: bad acceptance.*expected probabilities from 0 to 1"):
        read_rates(f"0.5,{rate}", "--engine-drafter")
