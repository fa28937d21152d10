"""Cost surfaces: time never falls with more work, and has the magnitude of the hardware."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulate.surface import SURFACES, Device, Experts, Regime, StepWork
from benchmarks.simulate.traffic import DRIFT_SECONDS, NO_DISTURBANCE, Clock, Disturbance


@st.composite
def works(draw):
    rows, length = draw(st.integers(1, 512)), draw(st.integers(0, 31))
    return StepWork(
        rows=rows,
        tokens=rows * (length + 1) + draw(st.integers(0, 8)),
        context_tokens=rows * draw(st.integers(1, 100_000)),
        draft_length=length,
        regime=draw(st.sampled_from(Regime)),
        prefill_tokens=draw(st.integers(0, 8192)),
        prefill_pairs=draw(st.integers(0, 10**8)),
        changed=draw(st.booleans()),
        missed=draw(st.integers(0, 10_000)),
    )


@pytest.mark.parametrize("name", SURFACES)
@given(work=works(), more=st.integers(1, 500))
@settings(max_examples=60)
def test_time_never_falls_with_more_work(name, work, more):
    surface = SURFACES[name]
    least = surface.seconds(work)
    per_row = work.context_tokens // work.rows, work.tokens / work.rows
    grown = [
        work._replace(tokens=work.tokens + more),
        work._replace(context_tokens=work.context_tokens + more),
        work._replace(prefill_tokens=work.prefill_tokens + more),
        work._replace(prefill_pairs=work.prefill_pairs + more),
        work._replace(missed=work.missed + more),
        work._replace(changed=True),
        work._replace(regime=Regime(min(work.regime + 1, Regime.EAGER))),
        work._replace(
            rows=work.rows + more,
            tokens=work.tokens + math.ceil(more * per_row[1]),
            context_tokens=work.context_tokens + more * (per_row[0] + 1),
        ),
    ]
    grown += [work._replace(draft_length=work.draft_length + 1)] * (work.draft_length > 0)
    for other in grown:
        assert surface.seconds(other) >= least * (1 - 1e-12), other


def test_a_step_without_work_takes_no_time():
    assert SURFACES["h200-8b"].seconds(StepWork(0, 0, 0)) == 0.0


@pytest.mark.parametrize(("name", "least", "most"), [("h200-8b", 4e-3, 7e-3), ("h200-70b-tp4", 9e-3, 14e-3)])
def test_one_row_takes_as_long_as_reading_the_weights(name, least, most):
    assert least < SURFACES[name].seconds(StepWork(1, 1, 1000)) < most


def test_a_mixture_of_experts_reads_more_weights_with_more_tokens_where_a_dense_model_does_not():
    def slowdown(name):
        surface = SURFACES[name]
        return surface.seconds(StepWork(4, 64, 4000, 15)) / surface.seconds(StepWork(4, 4, 4000, 15))

    assert slowdown("h200-8b") < 1.1
    assert slowdown("h200-moe-30b") > 1.5


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 8))
def test_overlapping_activities_take_between_the_longer_one_and_both(one, other, sharpness):
    found = Device(sharpness=sharpness).overlapped(one, other)
    assert max(one, other) * (1 - 1e-12) <= found <= (one + other) * (1 + 1e-9)


@given(st.integers(1, 200), st.integers(0, 1000))
def test_experts_touched(rows, drafted):
    experts = Experts(count=64, per_token=4, parameters=1.0)
    assert experts.touched(1, 1) == pytest.approx(4)
    assert experts.touched(rows, rows) - 1e-9 <= experts.touched(rows, rows + drafted) <= 64
    alike = Experts(count=64, per_token=4, parameters=1.0, diversity=0.0)
    assert alike.touched(rows, rows + drafted) == pytest.approx(alike.touched(rows, rows))


def test_noise_and_drift_are_those_of_the_seed():
    def times(disturbance, seed=1):
        clock = Clock(disturbance, seed)
        return [clock.spend(DRIFT_SECONDS / 300) for _ in range(300)]

    assert times(Disturbance()) == times(Disturbance()) != times(Disturbance(), 2)
    assert set(times(NO_DISTURBANCE)) == {DRIFT_SECONDS / 300}
    drifting = times(Disturbance(noise=0.0, drift=0.1))
    assert min(drifting) == pytest.approx(0.9 * DRIFT_SECONDS / 300, rel=1e-3)
    assert max(drifting) == pytest.approx(1.1 * DRIFT_SECONDS / 300, rel=1e-3)
