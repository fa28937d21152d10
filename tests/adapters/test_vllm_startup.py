"""What vLLM's adapter makes of a launch: one flag that turns speculation on, and models that it refuses."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.errors import EngineError, SettingsError
from specplug_vllm.config import require_settings
from specplug_vllm.startup import recurrent
from specplug_vllm.startup.engine_config import ENABLE, add_section, complete_spec

OURS = {"method": "custom_class", "model": "specplug_vllm.Proposer"}


@pytest.mark.parametrize(
    ("given", "section", "found"),
    [
        (None, {"proposer": "ngram"}, {**OURS, "num_speculative_tokens": 15}),
        (None, {}, {**OURS, "num_speculative_tokens": 15}),
        (None, {"proposer": "ngram", "num_speculative_tokens": 7}, {**OURS, "num_speculative_tokens": 7}),
        ({"num_speculative_tokens": 5}, {"proposer": "ngram"}, {**OURS, "num_speculative_tokens": 5}),
        ({"method": "custom_class"}, {}, {**OURS, "num_speculative_tokens": 15}),
        (
            {"model": "specplug_vllm.Proposer", "max_model_len": 9},
            {},
            {**OURS, "max_model_len": 9, "num_speculative_tokens": 15},
        ),
        ({**OURS, "num_speculative_tokens": 3}, {}, {**OURS, "num_speculative_tokens": 3}),
    ],
)
def test_a_section_alone_turns_speculation_on(given: Any, section: dict[str, Any], found: dict[str, Any]) -> None:
    assert complete_spec(given, {"specplug": section, "other": 1}) == found


@pytest.mark.parametrize(
    ("given", "additional_config"),
    [
        (None, None),
        (None, {}),
        (None, {"other": {"proposer": "ngram"}}),
        (None, {"specplug": {"proposer": "engine"}}),
        ({"method": "ngram", "num_speculative_tokens": 4}, {"specplug": {}}),
        ({"method": "mtp"}, {"specplug": {"proposer": "ngram"}}),  # refused later, by name
        ({"model": "a/draft-model", "num_speculative_tokens": 4}, {"specplug": {}}),
    ],
)
def test_other_launches_stay_as_they_are(given: Any, additional_config: Any) -> None:
    assert complete_spec(given, additional_config) is given


@pytest.mark.parametrize("section", [{"proposr": "ngram"}, "ngram"])
def test_an_invalid_section_is_refused_by_its_flag(section: Any) -> None:
    with pytest.raises(SettingsError, match="--additional-config"):
        complete_spec(None, {"specplug": section})


FLAG = "--additional-config 'specplug'"
SPECULATIVE = "--speculative-config"
FILE = "SPECPLUG_CONFIG"


@pytest.mark.parametrize(
    ("given", "additional_config", "environment", "expected"),
    [
        (None, {"specplug": {}}, {}, ("default", "default")),
        (None, {"specplug": {"proposer": "ngram", "num_speculative_tokens": 7}}, {}, (FLAG, FLAG)),
        (None, {"specplug": {}}, {"proposer": "ngram", "num_speculative_tokens": 7}, (FILE, FILE)),
        ({"num_speculative_tokens": 5}, {"specplug": {}}, {"num_speculative_tokens": 7}, ("default", SPECULATIVE)),
        ({**OURS, "num_speculative_tokens": 15}, {}, {"proposer": "ngram"}, (FILE, SPECULATIVE)),
        ({"method": "mtp", "num_speculative_tokens": 3}, {"specplug": {}}, {}, (SPECULATIVE, SPECULATIVE)),
    ],
)
def test_the_origin_of_a_value_is_who_gave_it(monkeypatch, given, additional_config, environment, expected):
    monkeypatch.setenv("SPECPLUG_CONFIG", json.dumps(environment))
    spec = SimpleNamespace(**{"model": None, **(complete_spec(given, additional_config) or {})})
    found = require_settings(SimpleNamespace(speculative_config=spec, additional_config=additional_config))
    assert (found.origins["proposer"], found.origins["num_speculative_tokens"]) == expected


SECTION: dict[str, Any] = {"specplug": {}}


@pytest.mark.parametrize(
    ("variable", "given", "additional_config", "found"),
    [
        ("1", None, {}, SECTION),
        ("1", None, {"other": 1}, SECTION | {"other": 1}),
        ("1", None, {"specplug": {"proposer": "retrieval"}}, {"specplug": {"proposer": "retrieval"}}),
        ("1", {"method": "ngram", "num_speculative_tokens": 4}, {}, {}),
        ("0", None, {}, {}),
        ("", None, {"other": 1}, {"other": 1}),
        (None, None, {}, {}),
    ],
)
def test_a_variable_stands_for_an_empty_section(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, given: Any, additional_config: Any, found: Any
) -> None:
    monkeypatch.delenv(ENABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(ENABLE, variable)
    assert add_section(additional_config, given) == found


def test_another_value_of_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENABLE, "true")
    with pytest.raises(SettingsError, match=r"SPECPLUG_ENABLE.*'true'.*0 or 1"):
        add_section({}, None)


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
