"""Steps that are timed before an engine's first request: the policy learns of them, and answers stay what they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specplug_transformers import Engine, GenerateRequest, SamplingParams, generate, timing

COSTS = {"seconds": 600.0}  # on a busy machine a size may take a while


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a process that has timed nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(timing, "_known", {})
    return tmp_path


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and columns of the forward passes of all engines."""
    found: list[tuple[int, int]] = []
    forward = timing.ModelRunner.forward

    def noting(self, rows, starts, token_ids, **kwargs):
        found.append(tuple(token_ids.shape))
        return forward(self, rows, starts, token_ids, **kwargs)

    monkeypatch.setattr(timing.ModelRunner, "forward", noting)
    return found


def answers(engine: Engine) -> list[tuple[int, ...]]:
    params = [SamplingParams(max_tokens=12), SamplingParams(max_tokens=12, temperature=1.0, seed=5)]
    return [
        output.token_ids
        for output in engine.generate([GenerateRequest(prompt=[3, 4, 5, 3, 4], params=one) for one in params])
    ]


def test_a_policy_learns_costs_before_the_first_request_and_answers_stay(make_engine: Callable[..., Engine], passes):
    before = torch.get_rng_state()
    engine = make_engine(policy="batch", costs=COSTS)
    measured = {(cost.requests, cost.tokens) for cost in engine.start_costs.costs}
    assert {(1, 1), (1, 2), (8, 8), (8, 16)} <= measured
    assert {(requests, tokens // requests) for requests, tokens in measured} <= {*passes}
    assert all(tokens <= 5 * requests for requests, tokens in measured)
    assert not any(cost.draft_length for cost in engine.start_costs.costs), "no drafting was timed"
    assert (engine.steps, engine.last_step, engine.metrics.snapshot().total.emitted) == (0, None, 0)
    assert torch.equal(torch.get_rng_state(), before), "who calls `generate` with a seed of torch gets its text"
    assert answers(engine) == answers(make_engine(policy="batch", costs={"measure": False}))


@pytest.mark.parametrize("settings", [{"policy": "batch", "costs": {"measure": False}}, {"policy": "fixed"}])
def test_nothing_is_timed_if_it_is_switched_off_or_no_policy_reads_it(make_engine, passes, settings):
    engine = make_engine(**settings)
    assert engine.start_costs.basis == "assumed"
    assert len(passes) == 2, "the comparison with plain passes"


def test_further_engines_of_a_process_start_at_once(make_engine, passes):
    first = make_engine(policy="batch", costs=COSTS).start_costs
    del passes[:]
    assert make_engine(policy="batch", costs=COSTS).start_costs is first
    assert len(passes) == 2


def test_generate_times_steps_once(llama, passes):
    settings, prompt = {"costs": COSTS, "num_speculative_tokens": 2}, torch.tensor([[3, 4, 5, 3, 4]])
    for _ in range(2):
        generate(llama, prompt, max_new_tokens=2, specplug=settings)
    wide = [shape for shape in passes if shape[1] == 3]
    assert 0 < len(wide) <= 8, "one size of three tokens, at most twice"
