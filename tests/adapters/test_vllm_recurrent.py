"""Models with recurrent state that vLLM's adapter refuses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from specplug.errors import EngineError
from specplug_vllm.startup import recurrent


def config(*, hybrid: bool = False, attention_free: bool = False, device: str = "cuda", v2: bool = True):
    return SimpleNamespace(
        model_config=SimpleNamespace(
            is_hybrid=hybrid, is_attention_free=attention_free, architecture="Mamba2ForCausalLM"
        ),
        device_config=SimpleNamespace(device_type=device),
        use_v2_model_runner=v2,
    )


def kv_cache(*kinds: str | None):
    specs = [SimpleNamespace() if kind is None else SimpleNamespace(mamba_type=named(kind)) for kind in kinds]
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


def named(kind: str):
    return SimpleNamespace(name=kind)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hybrid": True, "device": "cpu"}, "CPU kernels do not roll back .*Mamba2ForCausalLM.* on a CPU"),
        ({"attention_free": True, "device": "cpu"}, "CPU kernels do not roll back"),
        ({"attention_free": True, "v2": False}, "V1 runner does not record accepted .*VLLM_USE_V2_MODEL_RUNNER=1"),
    ],
)
def test_refused(given, message):
    with pytest.raises(EngineError, match=re.compile(message, re.DOTALL)):
        recurrent.refuse_unsupported(config(**given))


@pytest.mark.parametrize("given", [{"hybrid": True}, {"hybrid": True, "v2": False}, {"attention_free": True}])
def test_served_with_a_warning(given, caplog):
    recurrent.refuse_unsupported(config(**given))
    (warning,) = caplog.messages
    assert "Mamba2ForCausalLM, a model with recurrent state: compare a few answers" in warning


def test_a_model_of_attention_layers_is_served(caplog):
    recurrent.refuse_unsupported(config(device="cpu", v2=False))
    assert caplog.messages == []


def test_layers_that_are_not_reported_what_was_accepted_are_refused():
    recurrent.refuse_layers(kv_cache(None, *recurrent.ROLLED_BACK))
    for kind in ("MAMBA1", "LINEAR"):
        with pytest.raises(EngineError, match=kind):
            recurrent.refuse_layers(kv_cache(None, "MAMBA2", kind))
