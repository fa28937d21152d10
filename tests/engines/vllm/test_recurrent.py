"""Models with recurrent state, on kernels that roll back (see `tests.engines.recurrent_cpu`): tiny, of random weights.

Drafts are the right answer with every fifth token wrong, so that steps accept some and reject others.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.vllm.launch import TINY
from tests.engines.vllm.referee import RUNNERS, reported

DRAFT_LENGTH, TOKENS = 8, 20
SETTINGS: dict[str, Any] = {
    "proposer": "ngram",
    "extra_proposers": ["oracle"],
    "policy": "fixed",
    "options": {"oracle": {"error_every": 5}},
}
VARYING = {
    **SETTINGS,
    "policy": "ladder",
    "options": {**SETTINGS["options"], "ladder": {"draft_lengths": (8, 0, 3, 0, 8, 1)}},
}

# A prompt of one token, and one as long as the longest verification, join others that decode.
LENGTHS = (1, 3, 9, 1, 9, 5, 1, 9, 1, 9)


def mamba2(folder: Path) -> Path:
    """Save a Mamba-2 model of random weights with the tokenizer of the shipped model."""
    from transformers import AutoConfig, AutoModelForCausalLM, Mamba2Config

    config = Mamba2Config(
        vocab_size=AutoConfig.from_pretrained(TINY).vocab_size,
        hidden_size=64,
        state_size=16,
        num_hidden_layers=2,
        head_dim=16,
        num_heads=8,
        n_groups=1,
        chunk_size=16,
        initializer_range=0.5,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(mamba2(tmp_path_factory.mktemp("mamba2")))


@pytest.fixture(scope="module")
def answers(engine, model) -> list[dict[str, Any]]:
    """The model's answers without speculation, with each request alone in its slot."""
    plain = engine("v2", installed=False, name="baseline mamba2", **sizes(model))
    outputs = plain.call("inside.drive", requests=requests())["outputs"]
    return [outputs[str(number)]["token_ids"] for number in range(len(LENGTHS))]


def sizes(model: str) -> dict[str, Any]:
    return {"model": model, "max_model_len": 256, "max_num_seqs": 4, "recurrent": True}


def requests(answers: list[Any] | None = None, **by_turn: list[int]) -> list[dict[str, Any]]:
    """Return requests that join one by one, with drafts from their answers and further fields in turn."""
    draw, found = random.Random(1), []
    for number, length in enumerate(LENGTHS):
        params: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}
        if answers is not None:
            own = {name: values[number % len(values)] for name, values in by_turn.items()}
            params |= reported(answers[number], **own)
        prompt = [draw.randrange(5, 500) for _ in range(length)]
        found.append({"id": str(number), "prompt": prompt, "at": number + 1, "params": params})
    return found


def assert_same(run: dict[str, Any], answers: list[Any]) -> None:
    assert [run["outputs"][str(number)]["token_ids"] for number in range(len(answers))] == answers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v2", "v2_async"])
def test_the_text_is_that_of_plain_decoding(engine, model, answers, kind):
    fixed = engine(**RUNNERS[kind], specplug=SETTINGS, name=f"mamba2 {kind}", **sizes(model))
    run = fixed.call("watching.counted", call="drive", requests=requests(answers))
    assert_same(run["result"], answers)
    assert run["total"]["accepted"] > TOKENS
    assert run["total"]["rejected"] > 0
    assert_same(fixed.call("inside.drive", requests=requests(answers, num_speculative_tokens=[8, 3, 1, 0, 5])), answers)
    varying = engine(**RUNNERS[kind], specplug=VARYING, name=f"mamba2 {kind} varying", **sizes(model))
    assert_same(varying.call("inside.drive", requests=requests(answers)), answers)


def test_rows_that_decode_come_before_rows_that_prefill(monkeypatch):
    """vLLM takes the first prefilling row for the end of those that decode."""
    from vllm.v1.worker.gpu import model_runner

    from specplug_vllm.startup import recurrent

    decodes = {"drafted": 4, "full": DRAFT_LENGTH + 1, "plain": 1}
    prefills = {"as long as a verification": DRAFT_LENGTH + 1, "fresh": 1, "long": 40}
    counts = {**prefills, **decodes, "last of a prompt": 1}
    drafts = {"drafted": [-1] * 3, "full": [-1] * DRAFT_LENGTH}
    names = list(counts)
    computed = {name: 7 if name in decodes else 6 if name == "last of a prompt" else 0 for name in names}
    states = SimpleNamespace(
        req_id_to_index={name: slot for slot, name in enumerate(names)},
        num_computed_prefill_tokens=np.array([computed[name] for name in names]),
        prefill_len=SimpleNamespace(np=np.array([7 if computed[name] else counts[name] for name in names])),
    )
    baseline = model_runner.sort_batch_req_ids(counts, drafts, DRAFT_LENGTH + 1)
    assert baseline.index("as long as a verification") < baseline.index("plain")  # else vLLM has been mended

    monkeypatch.setattr(model_runner, "sort_batch_req_ids", model_runner.sort_batch_req_ids)
    for of_runner in (SimpleNamespace(), states):  # the second runner of a process takes the first one's place
        recurrent.install_worker(SimpleNamespace(req_states=of_runner))
    found = model_runner.sort_batch_req_ids(counts, drafts, DRAFT_LENGTH + 1)
    assert set(found[: len(decodes) + 1]) == {*decodes, "last of a prompt"}
    assert [name for name in baseline if name in prefills] == [name for name in found if name in prefills]
