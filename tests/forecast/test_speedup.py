"""Speed-ups: against a simulation of single steps, and the properties of best lengths and break-even acceptances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.forecast.acceptance import modelled
from specplug.forecast.model_shape import ModelShape, read_shape
from specplug.forecast.speedup import GPUS, RooflineCost, SaturationCost, forecast
from tests.forecast.configs import write_config

BATCHES = (1, 8, 64, 256)
MIXTURE = RooflineCost(
    ModelShape("test", 10**9, 0, 48, 128, 8, 5 * 10**6, 50_000, 4, 800_000, 16), GPUS["h100"], 512, 16, 16
)


def forecast_of(
    alpha: float, target=None, gamma: int = 6, draft_cost: float = 0.0, overhead: float = 0.0, batches=(1,)
):
    target = SaturationCost(256.0) if target is None else target
    found = modelled(alpha, gamma)
    return forecast(found, target, batches, gamma, draft_cost=lambda batch: draft_cost, overhead=overhead)


@pytest.fixture
def roofline(tmp_path):
    def roofline(name: str = "Llama-3.1-8B", gpu: str = "h200", context: int = 1024, **others) -> RooflineCost:
        shape = read_shape(write_config(tmp_path, name))
        return RooflineCost(shape, GPUS[gpu], context, shape.weight_bits or 16, 16, **others)

    return roofline


def test_speedup_is_that_of_a_simulated_server():
    alpha, gamma, batch, draft_cost, overhead = 0.7, 3, 100, 0.05, 0.02
    random = np.random.default_rng(0)
    accepted = np.minimum(random.geometric(1 - alpha, (20_000,)) - 1, gamma)
    tokens = 1 + accepted.mean()
    time = batch * (gamma + 1) / 256 + gamma * draft_cost + overhead  # a step without drafts takes 1
    [row] = forecast_of(alpha, gamma=gamma, draft_cost=draft_cost, overhead=overhead, batches=(batch,))
    error = 5 * accepted.std() / np.sqrt(accepted.size) / time
    assert row.lengths[gamma].speedup == pytest.approx(tokens / time, abs=error)
    assert row.lengths[gamma].cost == pytest.approx(time)


@given(
    alpha=st.floats(0, 1),
    draft_cost=st.floats(0, 1),
    overhead=st.floats(0, 0.5),
    saturation=st.floats(1, 1000),
    batch=st.integers(1, 512),
)
def test_the_best_length_never_loses_and_the_break_even_separates(alpha, draft_cost, overhead, saturation, batch):
    given_ = {"draft_cost": draft_cost, "overhead": overhead, "batches": (batch,)}
    [row] = forecast_of(alpha, SaturationCost(saturation), **given_)
    assert row.best.speedup >= 1 == row.lengths[0].speedup
    assert row.best.speedup == max(length.speedup for length in row.lengths)
    if row.break_even is None:
        assert row.best.gamma == 0
    elif row.best.gamma:
        assert alpha >= row.break_even - 1e-6
    elif alpha > row.break_even + 1e-6:  # equal speed-ups to within rounding
        assert max(length.speedup for length in row.lengths) == pytest.approx(1, abs=1e-6)


@given(st.floats(0, 0.98), st.floats(0, 1), st.integers(1, 512))
def test_more_acceptance_never_costs_and_more_overhead_never_pays(alpha, overhead, batch):
    [row], [better] = (forecast_of(each, overhead=overhead, batches=(batch,)) for each in (alpha, alpha + 0.02))
    assert better.best.speedup >= row.best.speedup
    assert better.break_even == row.break_even
    [dearer] = forecast_of(alpha, overhead=overhead + 0.1, batches=(batch,))
    assert dearer.best.speedup <= row.best.speedup


@given(st.floats(0, 1))
def test_where_arithmetic_binds_longer_drafts_only_pay_in_smaller_batches(alpha):
    best = [row.best.gamma for row in forecast_of(alpha, batches=BATCHES, overhead=0.02)]
    assert best == sorted(best, reverse=True)
    assert best[-1] == 0


def test_lengths_end_where_the_acceptance_does():
    [row] = forecast(modelled(0.5, 3), SaturationCost(256), (1,), 10, draft_cost=lambda batch: 0.0)
    assert [length.gamma for length in row.lengths] == [0, 1, 2, 3]


def test_a_step_reads_the_weights_once_and_every_requests_cache(roofline):
    cost = roofline(context=2048)
    weights = 2 * (8.030e9 - 128_256 * 4096)  # without the table of input embeddings
    assert cost.bytes_read(1, 1) == pytest.approx(weights + 2048 * 131_072, rel=1e-4)
    assert cost.bytes_read(8, 4) - cost.bytes_read(1, 1) == 7 * 2048 * 131_072
    assert cost.step(1, 1) == cost.bytes_read(1, 1) / 4.8e12
    assert cost.step(1024, 16) == cost.flops(1024, 16) / 989e12


@given(st.integers(1, 512), st.floats(1, 64), st.floats(1, 64))
def test_more_tokens_never_take_less_time(batch, one, other):
    few, many = sorted((one, other))
    for cost in (SaturationCost(200.0), MIXTURE):
        assert cost.step(batch, few) <= cost.step(batch, many) * (1 + 1e-12)
        assert cost.step(batch, few) <= cost.step(batch + 1, few) * (1 + 1e-12)


def test_gpus_share_weights_and_heads(roofline):
    alone, eight = roofline(), roofline(tensor_parallel=8)
    assert eight.bytes_read(4, 2) == pytest.approx(alone.bytes_read(4, 2) / 8)
    sixteen = roofline(tensor_parallel=16)  # of 8 KV heads each is on two GPUs
    cache = 4 * 1024 * 131_072
    assert sixteen.bytes_read(4, 2) == pytest.approx((alone.bytes_read(4, 2) - cache) / 16 + cache / 8)


def test_memory_of_a_draft_model(roofline):
    memory = roofline("Llama-3.2-1B", context=1000, tensor_parallel=2).memory(batch=16)
    assert memory.weights == 2 * memory.parameters == pytest.approx(2.4716e9, rel=1e-3)
    assert memory.kv_per_token == 16 * 2 * 8 * 64 * 2
    assert memory.kv_cache == 16 * 1000 * memory.kv_per_token
    assert memory.per_gpu == (memory.weights + memory.kv_cache) / 2
    assert memory.name == "Llama-3.2-1B"
