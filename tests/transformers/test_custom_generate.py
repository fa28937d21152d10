"""`model.generate(custom_generate=speculative_generate)` gives what `model.generate` gives."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from specplug.errors import EngineError, RequestError, SettingsError
from specplug_transformers import Engine, custom_generate, generate, speculative_generate
from tests.engines import pictures
from tests.transformers.conftest import cached_model
from tests.transformers.toys import prompts

PAD = 2
SPECULATION = {
    "custom_generate": speculative_generate,
    "specplug": {
        "num_speculative_tokens": 3,
        "options": {"ngram": {"min_n": 1}},  # any repetition is drafted from
        "faults": {"host_deadline_ms": None},
    },
}


def batch(count: int = 4, *, seed: int = 3) -> dict[str, torch.Tensor]:
    """Prompts of different lengths, padded on the left."""
    texts = prompts(count, seed=seed)
    longest = max(map(len, texts))
    return {
        "input_ids": torch.tensor([[PAD] * (longest - len(text)) + text for text in texts]),
        "attention_mask": torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts]),
    }


def one() -> dict[str, torch.Tensor]:
    ids = torch.tensor([[5, 9, 33, 5, 9]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_samples_follow_manual_seed_and_differ():
    model = cached_model("llama")

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.generate(**batch(), max_new_tokens=12, do_sample=True, eos_token_id=None, top_p=0.8, **SPECULATION)

    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    found = model.generate(**one(), max_new_tokens=12, do_sample=True, num_return_sequences=3, **SPECULATION)
    assert len({tuple(row) for row in found.tolist()}) == 3


def test_the_generation_config_may_stand_second():
    model = cached_model("llama")
    config = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=None)
    found = generate(model, one()["input_ids"], config, specplug=SPECULATION["specplug"])
    assert torch.equal(found, model.generate(one()["input_ids"], config))


def test_requests_have_fields_of_their_own():
    model, inputs = cached_model("llama"), batch(2)
    with pytest.raises(SettingsError, match="num_speculative_tokens"):
        model.generate(**inputs, custom_generate=speculative_generate, specplug={"num_spec_tokens": 2})
    with pytest.raises(RequestError, match="num_speculative_tokens"):
        model.generate(**inputs, max_new_tokens=4, specplug_requests=[{}, {"gamma": 3}], **SPECULATION)
    found = model.generate(
        **inputs, max_new_tokens=9, do_sample=False, specplug_requests=[{}, {"enabled": False}], **SPECULATION
    )
    assert torch.equal(found, model.generate(**inputs, max_new_tokens=9, do_sample=False))


@pytest.mark.parametrize(("count", "options"), [(1, {}), (3, {}), (2, {"do_sample": True, "num_return_sequences": 2})])
def test_each_row_has_its_fields(count, options, engines):
    """Prompts that are repeated are several rows; no engine is built for a call that is refused."""
    given = {"input_ids": torch.tensor([[5, 9], [9, 5]]), "max_new_tokens": 4, "pad_token_id": PAD, **options}
    model, rows = small_model(), 2 * options.get("num_return_sequences", 1)
    with pytest.raises(EngineError, match=f"specplug_requests.*; found {count}; expected {rows} mappings, "):
        model.generate(**given, specplug_requests=[{}] * count, **SPECULATION)
    assert not engines
    assert len(model.generate(**given, specplug_requests=[{}] * rows, **SPECULATION)) == rows


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "streaming a batch": ({"specplug_streamer": object()}, "streamer"),
    "tiny temperature": ({"do_sample": True, "temperature": 1e-38}, "found 1e-38.*do_sample=False"),
    "too long": ({"max_new_tokens": 500}, "Lower max_new_tokens"),
    "right padding": ({"attention_mask": batch()["attention_mask"].flip(1)}, "padding_side"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused(name):
    options, words = REFUSED[name]
    arguments = {**batch(), "max_new_tokens": 8, "do_sample": False, **options, **SPECULATION}
    with pytest.raises(EngineError, match=words):
        cached_model("llama").generate(**arguments)


def test_pictures_are_refused():
    """Without them the model that sees is served as any other."""
    model, mark = pictures.model(), pictures.ids()[0]
    text = torch.tensor([[5, 9, 33, 5, 9]])
    seen = {"input_ids": torch.cat([torch.full((1, 16), mark), text], 1), "pixel_values": torch.zeros(1, 3, 32, 32)}
    seen["image_sizes"] = torch.tensor([[pictures.SIDE, pictures.SIDE]])
    assert model.generate(**seen, max_new_tokens=2).shape == (1, 23)
    with pytest.raises(EngineError, match=r"found (image inputs|image_sizes, pixel_values); expected.* of token ids"):
        model.generate(**seen, max_new_tokens=2, **SPECULATION)
    found = [model.generate(text, max_new_tokens=12, **own) for own in ({}, SPECULATION)]
    assert found[0].tolist() == found[1].tolist()


def test_a_model_without_an_end_of_sequence():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, n_positions=64, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    inputs = {"input_ids": torch.tensor([[3, 4], [5, 6]]), "attention_mask": torch.ones(2, 2)}
    expected = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert torch.equal(model.generate(**inputs, max_new_tokens=8, do_sample=False, **SPECULATION), expected)


def small_model() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=16, n_layer=1, n_head=2)).eval()


@pytest.fixture
def engines(monkeypatch) -> list[Engine]:
    """The engines that are built."""
    built: list[Engine] = []

    def build(*args: Any, **kwargs: Any) -> Engine:
        built.append(Engine(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(custom_generate, "Engine", build)
    return built


def test_calls_for_one_model_share_an_engine(engines):
    model, given = small_model(), {**one(), "max_new_tokens": 12, "do_sample": False, "pad_token_id": PAD}
    plain = model.generate(**given)
    for _ in range(3):
        assert torch.equal(model.generate(**given, **SPECULATION), plain)
    assert len(engines) == 1
    assert engines[0].metrics.snapshot().total.accepted > 0


def test_a_model_that_has_changed_gets_a_new_engine(engines):
    model, given = small_model(), {**one(), "max_new_tokens": 4, "do_sample": False, "pad_token_id": PAD}
    model.generate(**given, **SPECULATION)
    model.resize_token_embeddings(70, mean_resizing=False)
    assert torch.equal(model.generate(**given, **SPECULATION), model.generate(**given))
    model.generate(**given, custom_generate=speculative_generate, specplug={"num_speculative_tokens": 5})
    model.generate(**{**given, "input_ids": torch.tensor([[5, 9], [9, 5]]), "attention_mask": None}, **SPECULATION)
    assert len(engines) == 4


def test_a_call_within_a_call_has_an_engine_of_its_own(engines):
    model, given = small_model(), {**one(), "max_new_tokens": 4, "do_sample": False, "pad_token_id": PAD}
    plain = model.generate(**given)
    found = []

    def stop(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        if not found:
            found.append(model.generate(**given, **SPECULATION))
        return torch.zeros(len(input_ids), dtype=torch.bool)

    outer = model.generate(**given, **SPECULATION, stopping_criteria=StoppingCriteriaList([stop]))
    assert torch.equal(outer, plain)
    assert torch.equal(found[0], plain)
    assert len(engines) == 2


def test_the_engine_goes_with_its_model(engines):
    model = small_model()
    with pytest.raises(EngineError, match="num_beams"):
        model.generate(**one(), max_new_tokens=4, num_beams=2, **SPECULATION)
    holding = LogitsProcessorList([lambda _ids, scores, _model=model: scores])
    given = {**one(), "max_new_tokens": 4, "do_sample": False, "pad_token_id": PAD, "logits_processor": holding}
    model.generate(**given, **SPECULATION)
    del holding, given
    remembered = weakref.ref(model)
    del model
    gc.collect()
    assert remembered() is None
