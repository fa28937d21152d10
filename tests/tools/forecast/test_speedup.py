"""Speed-ups: against a simulation of single steps, and the properties of best lengths and break-even acceptances."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.draft_model.facts import Parameters
from specplug.tools.forecast.acceptance import DraftAcceptance, by_position
from specplug.tools.forecast.model_shape import ModelShape, read_shape
from specplug.tools.forecast.speedup import GPUS, Gpu, RooflineCost, forecast, measured_cost, saturation_cost
from specplug.types.step import StepCost
from tests.tools.forecast.configs import write_config

BATCHES = (1, 8, 64, 256)
MIXTURE = RooflineCost(
    ModelShape("test", Parameters(10**9, 0, 128, 8, 24 * 10**7), 50_000, 4, 800_000, 16), GPUS["h100"], 512, 16, 16
)


def forecast_of(
    alpha: float, target=None, gamma: int = 6, draft_cost: float = 0.0, overhead: float = 0.0, batches=(1,)
):
    step = saturation_cost() if target is None else target
    found = by_position([alpha] * gamma)
    return forecast(found, step, batches, gamma, draft_cost=lambda batch: draft_cost, overhead=overhead)


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
    assert row["lengths"][gamma]["speedup"] == pytest.approx(tokens / time, abs=error)
    assert row["lengths"][gamma]["cost"] == pytest.approx(time)


@given(
    alpha=st.floats(0, 1),
    draft_cost=st.floats(0, 1),
    overhead=st.floats(0, 0.5),
    saturation=st.floats(1, 1000),
    batch=st.integers(1, 512),
)
def test_the_best_length_never_loses_and_the_break_even_separates(alpha, draft_cost, overhead, saturation, batch):
    given_ = {"draft_cost": draft_cost, "overhead": overhead, "batches": (batch,)}
    [row] = forecast_of(alpha, saturation_cost(saturation), **given_)
    assert row["best"]["speedup"] >= 1 == row["lengths"][0]["speedup"]
    assert row["best"]["speedup"] == max(length["speedup"] for length in row["lengths"])
    if row["break_even"] is None:
        assert row["best"]["gamma"] == 0
    elif row["best"]["gamma"]:
        assert alpha >= row["break_even"] - 1e-6
    elif alpha > row["break_even"] + 1e-6:  # equal speed-ups to within rounding
        assert max(length["speedup"] for length in row["lengths"]) == pytest.approx(1, abs=1e-6)


@given(st.floats(0, 0.98), st.floats(0, 1), st.integers(1, 512))
def test_more_acceptance_never_costs_and_more_overhead_never_pays(alpha, overhead, batch):
    [row], [better] = (forecast_of(each, overhead=overhead, batches=(batch,)) for each in (alpha, alpha + 0.02))
    assert better["best"]["speedup"] >= row["best"]["speedup"]
    assert better["break_even"] == row["break_even"]
    [dearer] = forecast_of(alpha, overhead=overhead + 0.1, batches=(batch,))
    assert dearer["best"]["speedup"] <= row["best"]["speedup"]


@given(st.floats(0, 1))
def test_where_arithmetic_binds_longer_drafts_only_pay_in_smaller_batches(alpha):
    best = [row["best"]["gamma"] for row in forecast_of(alpha, batches=BATCHES, overhead=0.02)]
    assert best == sorted(best, reverse=True)
    assert best[-1] == 0


@pytest.mark.parametrize(("batch", "cost"), [(1, 0.75 * 1 + 0.25 * 5), (2, 1)])
def test_the_lengths_of_one_request_count_each_and_those_of_several_on_average(batch, cost):
    """Three of four steps have no draft and one has eight tokens; steps of up to four tokens cost the same."""
    acceptance = DraftAcceptance((0.2,) * 8, (0.25,) * 8, "test")

    def step(requests: int, tokens: float, gamma: int) -> float:
        return max(1.0, tokens - 4)

    [row] = forecast(acceptance, step, (batch,), 8, draft_cost=lambda batch: 0.0)
    assert row["lengths"][8]["cost"] == cost


def test_lengths_end_where_the_acceptance_does():
    [row] = forecast(by_position([0.5] * 3), saturation_cost(256), (1,), 10, draft_cost=lambda batch: 0.0)
    assert [length["gamma"] for length in row["lengths"]] == [0, 1, 2, 3]


def test_a_step_reads_the_weights_once_and_every_requests_cache(roofline):
    cost = roofline(context=2048)
    read, computed = (replace(cost, gpu=gpu).step for gpu in (Gpu(1.0, math.inf), Gpu(math.inf, 1.0)))
    weights = 2 * (8.030e9 - 128_256 * 4096)  # without the table of input embeddings
    assert read(1, 1) == pytest.approx(weights + 2048 * 131_072, rel=1e-4)
    assert read(8, 4) - read(1, 1) == 7 * 2048 * 131_072
    assert cost.step(1, 1) == read(1, 1) / 4.8e12
    assert cost.step(1024, 16) == pytest.approx(computed(1024, 16) / 989e12)


@given(st.integers(1, 512), st.floats(1, 64), st.floats(1, 64))
def test_more_tokens_never_take_less_time(batch, one, other):
    few, many = sorted((one, other))
    for step in (saturation_cost(200.0), MIXTURE.step):
        assert step(batch, few, 1) <= step(batch, many, 1) * (1 + 1e-12)
        assert step(batch, few, 1) <= step(batch + 1, few, 1) * (1 + 1e-12)


def test_gpus_share_weights_and_heads(roofline):
    # sixteen: of 8 KV heads each is on two GPUs
    alone, eight, sixteen = (replace(roofline(tensor_parallel=n), gpu=Gpu(1.0, math.inf)) for n in (1, 8, 16))
    assert eight.step(4, 2) == pytest.approx(alone.step(4, 2) / 8)
    cache = 4 * 1024 * 131_072
    assert sixteen.step(4, 2) == pytest.approx((alone.step(4, 2) - cache) / 16 + cache / 8)


def test_memory_of_a_draft_model(roofline):
    memory = roofline("Llama-3.2-1B", context=1000, tensor_parallel=2).memory(batch=16)
    assert memory["weights"] == 2 * memory["parameters"] == pytest.approx(2.4716e9, rel=1e-3)
    assert memory["kv_per_token"] == 16 * 2 * 8 * 64 * 2
    assert memory["kv_cache"] == 16 * 1000 * memory["kv_per_token"]
    assert memory["per_gpu"] == (memory["weights"] + memory["kv_cache"]) / 2
    assert memory["name"] == "Llama-3.2-1B"


def test_measured_steps_are_what_steps_cost():
    """A server's steps of one request, with a jump from 4 to 5 tokens that no other cost has."""
    seconds = {1: 0.010, 2: 0.010, 4: 0.0104, 5: 0.0190, 8: 0.0200}
    steps = [StepCost(1, tokens, 0, tokens - 1, each) for tokens, each in seconds.items()]
    step = measured_cost(steps, context=0)
    assert [step(1, tokens, tokens - 1) for tokens in seconds] == pytest.approx(list(seconds.values()), rel=0.01)
    [row] = forecast_of(0.7, step, gamma=7)
    assert row["best"]["gamma"] == 3
    assert row["best"]["cost"] == pytest.approx(1.04, rel=0.01)


@given(
    alpha=st.floats(0.05, 0.95),
    batch=st.integers(1, 256),
    overhead=st.floats(0, 0.1),
    step=st.sampled_from([saturation_cost(100.0), MIXTURE.step]),
)
def test_the_best_length_is_the_one_that_the_decision_of_the_policies_takes(alpha, batch, overhead, step):
    """The policies charge time at the server's rate of tokens; at the best length's own rate it gains most."""
    [row] = forecast_of(alpha, step, overhead=overhead, batches=(batch,))
    best = row["best"]
    rate = batch * best["tau"] / (row["plain_step"] * best["cost"])
    gains = []
    for length in row["lengths"]:
        survivals = batch * (length["tau"] - 1)
        gains.append(survivals - rate * row["plain_step"] * (length["cost"] - 1))
    assert gains[best["gamma"]] == pytest.approx(max(gains), abs=1e-6 * batch)
