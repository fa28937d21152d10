"""A draft model over a part of the vocabulary, written as a third party would, leaves the output as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specplug.plugins.specs import ProposerSpec
from specplug_transformers import Engine, GenerateRequest, SamplingParams
from tests.transformers import test_distribution as distribution
from tests.transformers import toys
from tests.transformers.conftest import greedy

PLUGINS = Path(__file__).parents[1] / "engines" / "plugins"


@pytest.fixture
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> ProposerSpec:
    monkeypatch.syspath_prepend(str(PLUGINS))
    from specplug_testkit.plugin import spec_of

    spec = spec_of("tiny-model")
    monkeypatch.setitem(distribution.PROPOSERS, spec.name, spec)
    return spec


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "distinct seeds"])
def test_sampled_output_has_the_targets_distribution(tiny_model: ProposerSpec, seeded: bool) -> None:
    assert distribution.p_value(tiny_model.name, seeded=seeded) > 1e-4


def test_a_verifier_that_takes_it_for_uniform_is_found_out(tiny_model: ProposerSpec) -> None:
    assert distribution.p_value(tiny_model.name, seeded=False, verifier="uniform draft law") < 1e-6


def test_greedy_output_is_the_targets(tiny_model: ProposerSpec, llama: Any) -> None:
    settings = {"proposer": tiny_model.name, "policy": "fixed", "num_speculative_tokens": 4}
    engine = Engine(llama, settings=settings, registry=toys.make_registry([tiny_model]))
    prompts = [[5, 9, 33], [7], list(range(20))]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    outputs = engine.generate([GenerateRequest(prompt=prompt, params=params) for prompt in prompts])
    assert [list(it.token_ids) for it in outputs] == [greedy(llama, it, 24, eos_token_id=None) for it in prompts]
    assert engine.metrics.snapshot().total.verified > 0
    engine.close()
