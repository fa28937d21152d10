"""Tokens per step from acceptance: against every outcome of small drafts, and properties that hold for all."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import SettingsError
from specplug.forecast.acceptance import acceptance_for, by_position, expected_tau, modelled

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


@given(st.floats(0, 0.999), st.integers(0, 40))
def test_tau_of_a_constant_alpha_has_a_closed_form(alpha, gamma):
    closed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert expected_tau(alpha, gamma) == pytest.approx(closed)
    assert modelled(alpha, 40).tau(gamma) == pytest.approx(closed)
    assert expected_tau(1.0, gamma) == gamma + 1


@given(PROBABILITIES, st.integers(1, 30))
def test_alpha_is_found_from_tau(alpha, gamma):
    found = acceptance_for(expected_tau(alpha, gamma), gamma)
    assert found is not None
    assert expected_tau(found, gamma) == pytest.approx(expected_tau(alpha, gamma), abs=1e-5)
    assert found <= alpha + 1e-8


def test_no_alpha_gives_more_than_a_whole_draft_and_the_bonus():
    assert acceptance_for(4.01, 3) is None
    assert acceptance_for(4.0, 3) == pytest.approx(1.0)
    assert acceptance_for(1.0, 3) == acceptance_for(0.5, 3) == 0.0


def test_padding_is_computed_and_not_accepted():
    found = by_position([0.5, 0.5])
    short = type(found)(found.survival, (0.6, 0.3), "short drafts")
    assert short.tokens(2) == pytest.approx(1.9)
    assert short.padded().tokens(2) == 3
    assert short.padded().tau(2) == short.tau(2) == 1.75


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_are_probabilities(rate):
    with pytest.raises(SettingsError, match="expected probabilities, from 0 to 1"):
        by_position([0.5, rate])
