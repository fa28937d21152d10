"""Traffic: rates, bursts and limits are those that were stated."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.simulate.arrivals import TrafficSpec, bursty, poisson, ramp, shuffled, steady
from specplug.errors import SettingsError

ITEMS = np.arange(20_000)


def dispersion(traffic) -> float:
    """Return the variance of the number of arrivals in 5 seconds over its mean, which is 1 for a Poisson process."""
    counts = np.bincount((traffic.arrivals / 5.0).astype(int))
    return float(counts.var() / counts.mean())


def test_poisson_arrivals_have_their_rate_and_no_bursts():
    traffic = poisson(ITEMS, 10.0, 64, seed=0)
    assert ITEMS.size / traffic.arrivals[-1] == pytest.approx(10.0, rel=0.05)
    assert dispersion(traffic) == pytest.approx(1.0, abs=0.2)
    assert not traffic.is_closed
    assert traffic.max_running == 64


def test_bursty_arrivals_have_the_same_rate_and_bursts():
    traffic = bursty(ITEMS, 10.0, 64, seed=0)
    assert ITEMS.size / traffic.arrivals[-1] == pytest.approx(10.0, rel=0.2)
    assert dispersion(traffic) > 5
    assert np.all(np.diff(traffic.arrivals) >= 0)


def test_a_ramp_goes_up_and_down():
    limits = ramp(np.arange(100)).limits
    assert limits.tolist() == [8] * 10 + [128] * 80 + [8] * 10


def test_items_are_used_again_only_after_all_others():
    found = shuffled(7, 20, seed=3)
    assert sorted(found[:7]) == sorted(found[7:14]) == list(range(7))
    assert len({*found[14:].tolist()}) == 6
    assert found.tolist() == shuffled(7, 20, seed=3).tolist() != shuffled(7, 20, seed=4).tolist()


@pytest.mark.parametrize("text", ["steady:64", "ramp", "poisson:0.5", "bursty:1.2"])
def test_traffic_has_a_name_that_parses(text):
    assert str(TrafficSpec.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "steady", "steady:0", "steady:1.5", "steady:513", "ramp:3", "poisson:-1", "burst:1"]
)
def test_other_names_are_errors(text):
    with pytest.raises(SettingsError, match=r"unknown traffic.*such as bursty:0\.8"):
        TrafficSpec.parse(text)


def test_steady_traffic_is_closed():
    assert steady(ITEMS[:5], 3).is_closed
    assert TrafficSpec.parse("poisson:0.5").build(ITEMS[:50], 100.0, 9, 0).limits.tolist() == [9] * 50
