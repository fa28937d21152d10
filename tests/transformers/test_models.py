"""Models that are served, models that are refused, and the isolation of the cache's rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM, cache_utils

from specplug.errors import EngineError
from specplug.interfaces import PluginContext
from specplug.plugins.specs import ProposerSpec
from specplug.types.caps import ProposerCaps
from specplug_transformers import Engine, plugin
from specplug_transformers.runner import VERSIONS, ModelRunner, longest_context
from tests.transformers import toys
from tests.transformers.conftest import assert_greedy_equal, assert_plain, cached_model, greedy, requests_of
from tests.transformers.toys import ATTENTION, WINDOW, build_model, prompts

PROMPTS = prompts(5)


def tiny(kind: str, **config: Any) -> Any:
    """Build a model by its class's prefix, as small as it can be."""
    shape = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**{**shape, **config}))


LINEAR = ["linear_attention", "full_attention"]
SHAPE = {"hidden_size": 32, "intermediate_size": 32, "num_key_value_heads": 1, "pad_token_id": None}
NEMOTRON = {"layers_block_type": LINEAR, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1}


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("Mamba", {"state_size": 4}, r"layers of type.*rolls back to the accepted length"),
        ("Rwkv", {}, "recurrent state"),
        ("Qwen3Next", {**SHAPE, "layer_types": LINEAR, "num_experts": 2}, r"layers of type \['linear_attention'\]"),
        ("NemotronH", {**SHAPE, **NEMOTRON}, "layers of type|recurrent state"),
        ("Bloom", {}, "attention of the model's own"),
        ("GPTNeo", {"attention_types": [[["local"], 2]]}, "attention of the model's own"),
        ("Bart", {"d_model": 16, "decoder_attention_heads": 2, "decoder_layers": 1}, "attention of the model's own"),
    ],
)
def test_models_that_cannot_be_served_are_refused(kind, config, words):
    with pytest.raises(EngineError, match=words):
        Engine(tiny(kind, **config))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("_attn_implementation", "flash_attention_2", "'flash_attention_2'.*attn_implementation='sdpa'"),
        ("_attn_implementation", "flex_attention", "'flex_attention'.*attn_implementation='sdpa'"),
        ("is_encoder_decoder", True, "an encoder-decoder model"),
    ],
)
def test_configs_that_cannot_be_served_are_refused(field, value, words):
    model = build_model("llama")
    setattr(model.config, field, value)
    with pytest.raises(EngineError, match=words):
        Engine(model)


def test_models_that_look_ahead_are_found_out():
    """A BERT without `is_decoder` attends to later tokens, which its declarations do not show."""
    torch.manual_seed(3)
    shape = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(**shape, intermediate_size=16, initializer_range=0.5)
    with pytest.raises(EngineError, match=r"cosine similarity -?0\.\d+ to those of a plain forward pass"):
        Engine(BertLMHeadModel(config))


def test_models_that_count_positions_differently_are_found_out(monkeypatch):
    model = build_model("gpt2")
    forward = type(model.transformer).forward

    def shifted(self: Any, input_ids: Any = None, position_ids: Any = None, **more: Any) -> Any:
        if position_ids is None:
            position_ids = 2 + torch.arange(input_ids.shape[1])[None]
        return forward(self, input_ids, position_ids=position_ids, **more)

    monkeypatch.setattr(type(model.transformer), "forward", shifted)
    with pytest.raises(EngineError, match="positions that count from 0"):
        Engine(model)


def test_the_longest_context():
    assert longest_context(LlamaConfig(max_position_embeddings=77)) == 77
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 32, "rope_theta": 1e4}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 4.0}
    assert longest_context(LlamaConfig(max_position_embeddings=128, rope_parameters=rope)) == 32


def test_a_rotary_embedding_that_depends_on_the_longest_row(make_engine):
    """With dynamic scaling a draft beyond the trained length would change every token's distribution."""
    torch.manual_seed(7)
    config = LlamaConfig(**{**cached_model("llama").config.to_dict(), "max_position_embeddings": 32})
    config.rope_parameters = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = LlamaForCausalLM(config).eval()
    expected = [greedy(model, prompt, 32 - len(prompt), eos_token_id=None) for prompt in ([5, 9] * 12, [7])]
    engine = make_engine(model, num_speculative_tokens=9)
    outputs = engine.generate(requests_of([[5, 9] * 12, [7]], max_tokens=100, ignore_eos=True))
    assert_greedy_equal(model, [[5, 9] * 12, [7]], expected, [output.token_ids for output in outputs])


# -- the cache -----------------------------------------------------------------------------------------------


def poison(engine: Engine) -> None:
    """Overwrite what no token may see: everything beyond each row's computed length, and all rows without tenant.

    The values are huge, so that the smallest weight on them shows.  They are finite, because 0 times NaN is NaN in
    every dense attention.
    """
    computed = {state.row: state.computed for state in engine._running}
    for stored in engine.runner.cache.stored():
        for row in range(stored.shape[0]):
            stored[row, :, computed.get(row, 0) :] = 1e30


@pytest.mark.filterwarnings("error::FutureWarning")  # of transformers, where an argument is about to lose its name
@pytest.mark.parametrize("proposer", ["ngram", "garbage"])
@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_every_model_gives_its_own_answers(name, attention, proposer, make_engine):
    """More requests than rows, prompts longer than a prefill chunk, texts longer than a sliding window.

    No token sees what is left over of rejected drafts, of padding, and of rows that have moved or are others' now.
    """
    model = cached_model(name, attention)
    options = {"ngram": {"min_n": 1}}
    engine = make_engine(model, proposer=proposer, options=options, max_num_seqs=3, prefill_chunk=7)
    names = [engine.add(request) for request in requests_of(PROMPTS, max_tokens=32, ignore_eos=True)]
    outputs = {}
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
        poison(engine)
    assert_plain(model, PROMPTS, [outputs[name] for name in names], 32)
    total = engine.metrics.snapshot().total
    assert (total.accepted if proposer == "ngram" else total.rejected) > 0, "so that something was tested"


def test_what_overflowed_for_one_request_is_gone_for_the_next(make_engine):
    model = cached_model("llama")
    engine = make_engine(model, max_num_seqs=2)
    engine.generate(requests_of(PROMPTS[:2], max_tokens=10))
    for stored in engine.runner.cache.stored():
        stored[:, :, : engine.runner.cache._written] = torch.nan
    assert_plain(model, PROMPTS, engine.generate(requests_of(PROMPTS, max_tokens=10, ignore_eos=True)), 10)


@pytest.mark.parametrize(("name", "attention"), ATTENTION)
def test_ragged_rows_give_the_logits_of_plain_forwards(name, attention):
    """Rows come in any order, each from its own position, with padding after the shorter ones."""
    model = cached_model(name, attention)
    texts = [prompt * 3 for prompt in prompts(3, seed=9)]
    runner = ModelRunner(model)
    runner.cache.reserve(5, 11 + 2 * WINDOW)
    rows, starts = [4, 0, 2], [0, 0, 0]
    for size in (1, 7, 2 * WINDOW, 3):
        parts = [text[start : start + size] for text, start in zip(texts, starts, strict=True)]
        padded = torch.tensor([part + [0] * (size - len(part)) for part in parts])
        logits = runner.forward(rows, starts, padded)
        for text, start, part, found in zip(texts, starts, parts, logits, strict=True):
            with torch.no_grad():
                plain = model(input_ids=torch.tensor([text[: start + len(part)]])).logits[0, start:]
            torch.testing.assert_close(found[: len(part)], plain.float(), atol=2e-4, rtol=1e-4)
        starts = [start + len(part) for start, part in zip(starts, parts, strict=True)]


# -- the installed transformers ------------------------------------------------------------------------------


def test_doctor_finds_the_same_text():
    version, found = plugin.check(None)
    assert found.status == "ok", found.summary
    assert (version.status, transformers.__version__ in version.summary) == ("ok", True)


@pytest.mark.parametrize("owner", [transformers.PreTrainedModel, cache_utils.Cache], ids=lambda owner: owner.__name__)
def test_a_transformers_that_has_moved_is_named(monkeypatch, owner):
    monkeypatch.delattr(owner, {"Cache": "update", "PreTrainedModel": "_is_stateful"}[owner.__name__])
    with pytest.raises(EngineError, match="does not run with specplug's cache") as caught:
        Engine(build_model("llama"))
    for part in (f"found transformers {transformers.__version__}", f"expected {VERSIONS}"):
        assert part in str(caught.value)
    result = plugin.check(None)[1]
    assert (result.status, result.remedy) == ("fail", VERSIONS.remedy)
    assert transformers.__version__ in result.summary


def test_what_users_call_is_called(monkeypatch):
    """A `generate` that gives its function one more argument runs models, but is not served."""
    prepare = transformers.GenerationMixin._prepare_cache_for_generation

    def prepared(self, config, model_kwargs, *args):
        model_kwargs["kv_store"] = object()
        return prepare(self, config, model_kwargs, *args)

    monkeypatch.setattr(transformers.GenerationMixin, "_prepare_cache_for_generation", prepared)
    version, result = plugin.check(None)
    assert (version.status, result.status) == ("ok", "fail")
    assert "found kv_store" in result.summary


def test_proposers_are_reported_of_the_target(llama: Any) -> None:
    contexts: list[PluginContext] = []

    def factory(context: PluginContext) -> toys.Oracle:
        contexts.append(context)
        return toys.Oracle(context)

    spec = ProposerSpec(name="reported", factory=factory, summary="", caps=ProposerCaps(needs_host=True))
    tokenizer = object()
    Engine(llama, tokenizer, settings={"proposer": "reported"}, registry=toys.make_registry([spec])).close()
    (context,) = contexts
    found = context.target_path, context.target_config, context.target_tokenizer
    assert found == (llama.name_or_path or None, llama.config, tokenizer)
