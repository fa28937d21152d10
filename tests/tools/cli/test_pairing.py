"""`specplug doctor --target --draft`: the checklist of a pairing, on the shipped models and on made-up ones."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from specplug.draft_model.facts import ModelFacts, Parameters, cache_elements, count_parameters, read_facts
from specplug.draft_model.model import DraftModel
from specplug.metrics import SpecMetrics
from specplug.tools.cli.pairing import check_acceptance, check_outputs, check_size, count_shape
from specplug.tools.demo import model_path
from tests.tools.cli import tools

PROMPTS = ("<|code|>import os\nimport sys\n\ndef main():\n", "<|code|>class Stack:\n    def __init__(self):\n")
invoke = partial(tools.invoke, "doctor")
WITHOUT_RUN = ["tokenizers", "kinds", "maximum lengths", "size", "memory"]


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SPECPLUG_CONFIG", raising=False)


def pairing(target: object, draft: object, *arguments: object, code: int = 0, **env: str) -> dict[str, dict[str, Any]]:
    """Return the results of a pairing by check."""
    found = tools.stated("doctor", "--target", target, "--draft", draft, *arguments, code=code, env=env)
    assert found["ok"] == (code == 0)
    return {check["check"]: check for check in found["checks"]}


def changed(folder: Path, name: str, config: dict[str, Any] | None = None, tokenizer: dict[str, Any] | None = None):
    """Return a copy of a shipped model, without weights, with changed files."""
    for file, changes in (("config.json", config), ("tokenizer.json", tokenizer), ("tokenizer_config.json", None)):
        content = json.loads((model_path(name) / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps(content | (changes or {})), encoding="utf-8")
    return folder


def of_kind(folder: Path, kind: str, **sizes: Any) -> Path:
    """Return the configuration of another kind of model, with the tokenizer of `tiny`."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_path() / file, folder / file)
    AutoConfig.for_model(kind, **sizes).save_pretrained(folder)
    return folder


def test_same_tokenizer():
    found = pairing("tiny", "tiny-draft")
    assert list(found) == [*WITHOUT_RUN, "quick run"]
    assert {check["status"] for check in found.values()} == {"ok"}
    assert found["tokenizers"]["summary"] == "the same, so drafts go as the same ids"
    assert found["tokenizers"]["figures"]["overlap_of_target_percent"] == 100
    size, memory = found["size"]["figures"], found["memory"]["figures"]
    assert (size["target_parameters"], size["draft_parameters"]) == (3_803_904, 381_408)
    assert size["speed_ratio"] == pytest.approx(3_803_904 / 381_408)
    assert memory["kv_cache"] == 64 * 2048 * memory["kv_per_token"]
    assert "options.crosstok.max_requests or max_context" in found["memory"]["remedy"]
    assert "--prompt TEXT or --prompts FILE" in found["quick run"]["remedy"]


def test_another_tokenizer_with_a_quick_run(tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{PROMPTS[1].splitlines()[0]}\n\n", encoding="utf-8")
    arguments = ("--prompt", PROMPTS[0], "--prompts", prompts, "--max-tokens", 24, "--gamma", 4)
    found = pairing("tiny", "tiny-draft-other", *arguments)
    assert list(found) == [*WITHOUT_RUN, "acceptance", "outputs", "speed-up"]
    assert "44.6% of the target's vocabulary and 89.3% of the draft's" in found["tokenizers"]["summary"]
    assert found["tokenizers"]["figures"]["route"] == "auto"
    assert found["outputs"]["figures"]["identical"]
    acceptance, speedup = found["acceptance"]["figures"], found["speed-up"]["figures"]
    assert acceptance["tokens_per_step"] > 1
    assert sum(acceptance["accepted_by_source"].values()) > 0
    assert len(acceptance["acceptance_by_position"]) == acceptance["gamma"] == speedup["gamma"] == 4
    cost = 1 + 4 * found["size"]["figures"]["draft_cost"] + 0.02
    assert speedup["at_gamma"] == pytest.approx(acceptance["tokens_per_step"] / cost, rel=0.1)
    assert speedup["best"] >= speedup["at_gamma"]
    assert "48 tokens of 2 prompts" in found["acceptance"]["summary"]


@pytest.mark.parametrize(
    ("parameters", "status", "remedy"),
    [
        (49, "ok", ""),
        (51, "warn", "half"),
        (99, "warn", "half"),
        (100, "fail", "smaller draft model"),
        (101, "fail", "swapped"),
    ],
)
def test_a_draft_model_above_half_of_the_target_warns(parameters: int, status: str, remedy: str):
    tiny = count_shape(read_facts(str(model_path())))
    found = check_size(*(replace(tiny, weights=Parameters(count, 0)) for count in (100, parameters)))
    assert (found.status, remedy in found.remedy, "swapped" in found.remedy) == (status, True, parameters > 100)


def test_what_a_tokenizer_does_not_keep_is_told(tmp_path):
    lower = changed(tmp_path, "tiny-draft-other", tokenizer={"normalizer": {"type": "Lowercase"}})
    found = pairing("tiny", lower, "--prompt", PROMPTS[0], "--max-tokens", 16, code=1)
    assert found["tokenizers"]["status"] == "ok"
    assert found["tokenizers"]["summary"].endswith("; the draft's normalises text")
    content = json.loads((model_path("tiny") / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    vocab["missing"] = vocab.pop("Ā")
    gap = changed(tmp_path, "tiny", tokenizer={"model": content["model"] | {"vocab": vocab}})
    assert pairing(gap, "tiny-draft-other")["tokenizers"]["summary"].endswith(
        "; the target's has no token for 1 of 256 bytes"
    )


BARE = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")) | {"added_tokens": []}


@pytest.mark.parametrize("parts", [{"pre_tokenizer": {"type": "Whitespace"}}, BARE], ids=["words", "no byte fallback"])
def test_a_tokenizer_that_spells_no_text_fails_with_the_reason(tmp_path, parts: dict[str, Any]):
    words = {"type": "WordLevel", "vocab": {"[UNK]": 0, "the": 1, "cat": 2}, "unk_token": "[UNK]"}
    other = changed(tmp_path, "tiny-draft-other", tokenizer={"model": words, **parts})
    found = pairing("tiny", other, "--prompt", PROMPTS[0], code=1)["tokenizers"]
    assert found["status"] == "fail"
    assert "cannot translate token ids of this tokenizer, whose tokens spell no text" in found["summary"]
    assert "the target's own tokenizer" in found["remedy"]
    assert "Choose" not in found["summary"], "one remedy, which the target's tokenizer cannot contradict"


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("mamba", {"hidden_size": 64, "num_hidden_layers": 2}, "layers of the kinds linear_attention"),
        ("t5", {"d_model": 64, "num_layers": 2}, "an encoder-decoder, t5"),
        ("bart", {"d_model": 64}, "an encoder-decoder, bart"),
        # From transformers 5.24 on its configuration names the kinds; before, its layers are tried.
        ("recurrent_gemma", {"num_hidden_layers": 3}, "layers of the kinds|keys and values of 1 of 3 layers"),
        ("clip", {}, "no causal language model that transformers builds"),
    ],
)
def test_kinds_that_cannot_draft_fail(tmp_path, kind: str, sizes: dict[str, Any], reason: str):
    found = pairing("tiny", of_kind(tmp_path, kind, **sizes), code=1)
    assert re.search(reason, found["kinds"]["summary"])
    assert not found.keys() & {"size", "memory", "quick run"}


def test_a_target_may_keep_states(tmp_path):
    found = pairing(of_kind(tmp_path, "mamba", hidden_size=512, num_hidden_layers=8), "tiny-draft")
    assert found["kinds"]["summary"].startswith("target mamba, draft llama")
    assert "target not stated" in found["maximum lengths"]["summary"]


def test_a_draft_model_of_fewer_positions_warns(tmp_path):
    found = pairing("tiny", changed(tmp_path, "tiny-draft", config={"max_position_embeddings": 512}))
    assert found["maximum lengths"]["status"] == "warn"
    assert "the newest tokens only" in found["maximum lengths"]["summary"]
    assert found["memory"]["figures"]["max_context"] == 512


def test_memory_is_that_of_the_settings():
    narrow = '{"options": {"crosstok": {"max_requests": 2, "max_context": 128, "dtype": "bfloat16", "route": "tli"}}}'
    found = pairing("tiny", "tiny-draft-other", SPECPLUG_CONFIG=narrow)
    assert found["memory"]["figures"]["kv_cache"] == 2 * 128 * 2 * (2 * 2 * 96)  # bytes x layers x (keys, values)
    assert "crosstok reads the newest 128" in found["maximum lengths"]["summary"]
    assert found["tokenizers"]["summary"].endswith("drafts go as common ids")


def test_a_memory_that_this_machine_lacks_warns():
    wide = '{"options": {"crosstok": {"max_requests": 100000000}}}'
    found = pairing("tiny", "tiny-draft", SPECPLUG_CONFIG=wide)["memory"]
    assert (found["status"], "this machine has" in found["summary"]) == ("warn", True)


def test_a_cache_of_unknown_size_warns(monkeypatch):
    monkeypatch.setattr("specplug.tools.cli.pairing.cache_elements", lambda facts: None)
    found = pairing("tiny", "tiny-draft")
    assert (found["memory"]["status"], "unknown size" in found["memory"]["summary"]) == ("warn", True)
    assert found["kinds"]["summary"] == "target llama, draft llama"


def test_facts_are_those_of_the_loaded_model():
    path = str(model_path("tiny-draft"))
    facts, model = read_facts(path), DraftModel(path, max_texts=2, max_length=7, device=torch.device("cpu"))
    model.warm_up()
    parameters, elements = count_parameters(facts), cache_elements(facts)
    cached = sum(states.numel() for layer in model._cache.layers for states in (layer.keys, layer.values))
    assert (parameters.dense + parameters.embedding, 2 * (7 + 1) * elements) == (model.num_parameters, cached)
    assert (facts.vocab_size, facts.max_length, facts.weight_bits) == (model.vocab_size, 2048, 16)


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 4}, 4),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 8}}}}, 8),
        ({"quant_method": "another"}, 16),
        (None, 16),
    ],
)
def test_bits_of_quantised_weights(quantisation: dict[str, Any] | None, bits: float):
    config = AutoConfig.for_model("llama", quantization_config=quantisation)
    assert ModelFacts("quantised", config).weight_bits == bits


def test_a_missing_folder_is_a_mistake(tmp_path):
    shown = invoke("--target", "tiny", "--draft", tmp_path / "missing", code=2).stderr
    assert "missing: cannot read the model's configuration; found no such folder" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "tiny"), "a pairing needs two models; found only --target; expected --target and --draft"),
        (("--draft", "tiny"), "found only --draft"),
        (("--prompt", "a"), "found only prompts"),
        (("--target", "tiny", "--draft", "tiny", "--launch", "vllm serve M"), "no part of a pairing"),
        (("--target", "tiny", "--draft", "tiny", "--prompts", "/no/such/file"), "/no/such/file: cannot read a file"),
        (("--target", "tiny", "--draft", "tiny", "--prompts", "/dev/null"), "no prompts"),
    ],
)
def test_mistakes_in_the_command(arguments: tuple[str, ...], message: str):
    assert message in invoke(*arguments, code=2).stderr


def test_table():
    shown = invoke("--target", "tiny", "--draft", "tiny-draft").stdout
    for part in ("Pairing of tiny and tiny-draft", "tokenizers", "maximum lengths", "remedy"):
        assert part in shown
    assert "Settings" not in shown


def test_an_engine_that_fails_hides_nothing(monkeypatch):
    def lost(*_args: object, **_kwargs: object):
        raise OSError("no such device")

    monkeypatch.setattr("specplug.tools.cli.pairing.start_engine", lost)
    found = pairing("tiny", "tiny-draft", "--prompt", "a", code=1)
    assert list(found) == [*WITHOUT_RUN, "quick run"]
    assert found["quick run"]["summary"] == "OSError: no such device"


def test_outputs_that_differ_fail_in_float32_alone(monkeypatch):
    assert check_outputs([[1], [2, 3]], [[1], [2, 4]]).status == "fail"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = check_outputs([[1], [2, 3]], [[1], [2, 4]])
    assert (found.status, "1 of 2 differ" in found.summary) == ("warn", True)


def test_a_run_without_drafts_or_with_faults_is_seen():
    counters = SpecMetrics(["a"], 4)
    assert check_acceptance(counters.snapshot(), 4, 1, 8).status == "warn"
    counters.count_fault("crosstok", "raised")
    found = check_acceptance(counters.snapshot(), 4, 1, 8)
    assert (found.status, "1 raised (crosstok)" in found.summary) == ("fail", True)
