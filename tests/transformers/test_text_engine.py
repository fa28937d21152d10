"""The engine as the command line drives it: a folder in, text out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from specplug.errors import EngineError, RequestError
from specplug.plugins.embedded import TextRequest
from specplug.settings.sources import load_settings
from specplug_transformers import TransformersEngine
from tests.transformers.conftest import cached_model, greedy
from tests.transformers.test_stopping import byte_tokenizer, spell

PROMPTS = ["end. ", "東京 naïve"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "toy"
    cached_model("llama").save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def engine(folder: Path):
    engine = TransformersEngine(str(folder), load_settings({}, env={}).settings, device="cpu", max_num_seqs=2)
    yield engine
    engine.close()


def requests() -> list[TextRequest]:
    return [TextRequest(prompt=prompt, max_tokens=16) for prompt in PROMPTS]


def expected() -> tuple[list[list[int]], list[str]]:
    """What the model answers, as ids and as texts."""
    plain = [greedy(cached_model("llama"), spell(prompt), 16) for prompt in PROMPTS]
    return plain, [byte_tokenizer().decode(answer, skip_special_tokens=True) for answer in plain]


def test_serves_texts_together(engine):
    answers = dict.fromkeys(range(len(PROMPTS)), "")
    ends = {}
    for update in engine.stream(requests()):
        answers[update.index] += update.text
        ends[update.index] = update.finish_reason
    plain, texts = expected()
    assert answers == dict(enumerate(texts))
    assert set(ends.values()) <= {"length", "stop"}
    assert engine.metrics.snapshot().total.emitted == sum(map(len, plain))
    assert engine.describe().startswith("toy, 0.0 M parameters, torch.float32, on a CPU")


def test_streams_that_are_open_together_keep_their_answers(engine):
    streams = [engine.stream([each]) for each in requests()]
    begun = [next(stream).text for stream in streams]
    rests = ["".join(update.text for update in stream) for stream in streams]
    _, texts = expected()
    assert [text + rest for text, rest in zip(begun, rests, strict=True)] == texts


def test_whoever_stops_listening_leaves_nothing_behind(engine):
    stream = engine.stream(requests())
    next(stream)
    stream.close()
    assert not engine.engine.has_work
    with pytest.raises(RequestError, match="empty prompt"):
        list(engine.stream([*requests(), TextRequest(prompt="")]))
    assert not engine.engine.has_work
    assert {update.index for update in engine.stream(requests()[:1])} == {0}


def test_what_cannot_be_loaded_is_named(folder, tmp_path):
    settings = load_settings({}, env={}).settings
    with pytest.raises(EngineError, match="cannot load the model; found "):
        TransformersEngine(str(tmp_path), settings, device="cpu")
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EngineError, match="broken: cannot load the model; found SafetensorError"):
        TransformersEngine(str(broken), settings, device="cpu")
    with pytest.raises(EngineError, match=r"unknown dtype; found 'floaty'; expected float32"):
        TransformersEngine(str(folder), settings, device="cpu", dtype="floaty")


def test_the_baseline_gives_log_probabilities_of_a_plain_forward_pass(folder, engine):
    """Without `baseline` they are refused."""
    wanted = TextRequest(prompt=spell(PROMPTS[0]), max_tokens=6, top_logprobs=3)
    with pytest.raises(RequestError, match="no log-probabilities"):
        list(engine.stream([wanted]))
    settings = load_settings({}, env={}).settings
    baseline = TransformersEngine(str(folder), settings, device="cpu", baseline=True)
    try:
        assert baseline.tokenize(PROMPTS[0]) == spell(PROMPTS[0])
        updates = list(baseline.stream([wanted]))
    finally:
        baseline.close()
    tokens = [token for update in updates for token in update.token_ids]
    tops = [top for update in updates for top in update.top_logprobs]
    assert len(tops) == len(tokens)
    text = spell(PROMPTS[0])
    for token, top in zip(tokens, tops, strict=True):
        with torch.no_grad():
            logits = cached_model("llama")(torch.tensor([text])).logits[0, -1].log_softmax(-1)
        assert top == pytest.approx({each: float(logits[each]) for each in top}, abs=1e-4)
        assert max(top, key=top.__getitem__) == token
        text = [*text, token]
    assert baseline.metrics.snapshot().total.proposed == 0
