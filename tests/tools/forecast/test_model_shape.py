"""Sizes of models: published ones, those of real modules, and experts touched against every routing of small layers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from specplug.draft_model.facts import ModelFacts, Parameters
from specplug.errors import SpecplugError
from specplug.tools.demo import model_path
from specplug.tools.forecast.model_shape import ModelShape, count_shape, read_shape
from tests.tools.forecast.configs import write_config


def moe(experts: int, per_token: int) -> ModelShape:
    return ModelShape("test", Parameters(0, 0, experts, per_token, 1), 0, 1, 0, 16.0)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [  # published numbers of parameters; the active ones without the input embedding, which is only looked up
        ("Llama-3.1-8B", 8.030, 8.030 - 0.525),
        ("Llama-3.1-70B", 70.554, 70.554 - 1.051),
        ("Llama-3.2-1B", 1.2358, 1.2358),
        ("Mixtral-8x7B", 46.703, 12.88 - 0.131),
        ("Qwen3-30B-A3B", 30.532, 3.35 - 0.311),
        ("Qwen1.5-MoE-A2.7B", 14.316, 2.69 - 0.311),
        ("DeepSeek-V3", 671.026, 37.55 - 0.927),
    ],
)
def test_parameters_are_the_published_ones(tmp_path, name, billions, active):
    shape = read_shape(write_config(tmp_path, name))
    assert shape.name == name
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=1e-3)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=5e-3)


@pytest.mark.parametrize("name", ["tiny", "tiny-draft"])
def test_a_shipped_model_has_as_many_weights_as_its_file(name):
    from safetensors.torch import load_file

    weights = load_file(model_path(name) / "model.safetensors")
    assert read_shape(model_path(name)).parameters == sum(weight.numel() for weight in weights.values())
    assert read_shape(model_path(name) / "config.json").weights.embedding == 0  # tied


@pytest.mark.parametrize(
    ("name", "elements", "heads", "flops"),
    [
        ("Llama-3.1-8B", 32 * 2 * 8 * 128, 8, 32 * 2 * 2 * 32 * 128),
        ("DeepSeek-V3", 61 * (512 + 64), 1, 61 * 2 * 128 * (512 + 64 + 512)),  # latents
    ],
)
def test_the_cache_holds_heads_or_latents(tmp_path, name, elements, heads, flops):
    shape = read_shape(write_config(tmp_path, name))
    assert (shape.kv_elements, shape.kv_heads, shape.attention_flops) == (elements, heads, flops)


def test_a_model_without_attention_has_no_cache():
    config = AutoConfig.for_model("mamba", hidden_size=64, num_hidden_layers=2, vocab_size=100)
    shape = count_shape(ModelFacts("mamba", config))
    assert (shape.kv_elements, shape.attention_flops, shape.kv_heads) == (0, 0, 1)


def test_layers_without_experts_and_models_of_the_same_layers_are_counted(tmp_path):
    all_sparse, half = (
        read_shape(write_config(tmp_path, "Qwen3-30B-A3B", **more)).weights.expert
        for more in ({}, {"decoder_sparse_step": 2, "mlp_only_layers": [1]})
    )
    assert half / all_sparse == 23 / 48
    deepseek, kimi = (
        read_shape(write_config(tmp_path, "DeepSeek-V3", **more)) for more in ({}, {"model_type": "kimi_k2"})
    )
    assert kimi == deepseek


@pytest.mark.parametrize(
    ("changed", "bits"),
    [
        ({}, 16),
        ({"torch_dtype": "float32"}, 32),
        ({"torch_dtype": None}, 16),
        ({"quantization_config": {"quant_method": "fp8"}}, 8),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, 4),
        ({"quantization_config": {"quant_method": "other"}}, None),
    ],
)
def test_bits_are_those_of_the_weights(tmp_path, changed, bits):
    assert read_shape(write_config(tmp_path, "Llama-3.1-8B", **changed)).weight_bits == bits


@pytest.mark.parametrize(("experts", "per_token", "tokens"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2)])
def test_experts_touched_are_the_mean_over_all_routings(experts, per_token, tokens):
    choices = list(itertools.combinations(range(experts), per_token))
    touched = [len(set().union(*routing)) for routing in itertools.product(choices, repeat=tokens)]
    assert moe(experts, per_token).experts_touched(tokens) == pytest.approx(sum(touched) / len(touched))


@given(st.integers(1, 256), st.data())
def test_more_tokens_touch_more_experts_up_to_all(experts, data):
    shape = moe(experts, data.draw(st.integers(1, experts)))
    tokens = sorted(data.draw(st.lists(st.floats(1, 1e4), min_size=2, max_size=2)))
    few, many = map(shape.experts_touched, tokens)
    assert shape.weights.experts_per_token * (1 - 1e-9) <= few <= many <= experts
    assert shape.experts_touched(1) == pytest.approx(shape.weights.experts_per_token)
    assert shape.parameters_read(1) == pytest.approx(shape.active_parameters)


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "t5"},
        {"model_type": "qwen3moe"},
        {"num_hidden_layers": "many"},
        {"vocab_size": -1},
    ],
)
def test_configurations_that_cannot_be_counted_are_refused(tmp_path, changed):
    with pytest.raises(SpecplugError, match=r"Llama-3\.1-8B: (cannot read the model's conf|no causal language model)"):
        read_shape(write_config(tmp_path, "Llama-3.1-8B", **changed))


@pytest.mark.parametrize("text", [None, "{", "5"])
def test_a_folder_without_a_configuration_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecplugError, match="configuration"):
        read_shape(tmp_path)
