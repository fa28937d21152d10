"""Sampled output of models with recurrent state: exact probabilities of whole answers against observed counts.

The vocabulary has four tokens, so that all answers can be enumerated.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from specplug.testing.statistics import g_test
from tests.engines.engines import Engine
from tests.engines.recurrent_models import model, save
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import RUNNERS, reported
from tests.engines.vllm.test_recurrent import HYBRIDS, SIZES, VARYING
from tests.engines.vllm.test_recurrent_mutants import plant

VOCAB, LENGTH, TEMPERATURE = 4, 5, 1.5
PROMPT = [2, 0, 3, 1, 1]
ANSWERS = 512
SETTINGS = {**VARYING, "options": {"ladder": {"draft_lengths": (3, 0, 2, 3, 1)}}}

PAIRS = [(kind, name) for kind in RUNNERS for name in HYBRIDS]
FAST = [("v1", "falcon_h1")]
SPLIT = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]


@functools.cache
def distribution(name: str) -> torch.Tensor:
    """Return the probability of each answer, [VOCAB ** LENGTH] float64; an answer's number has base VOCAB."""
    texts = list(itertools.product(range(VOCAB), repeat=LENGTH))
    with torch.inference_mode():
        logits = model(name, VOCAB)(torch.tensor([[*PROMPT, *text[:-1]] for text in texts])).logits
    after = (logits[:, len(PROMPT) - 1 :].double() / TEMPERATURE).softmax(-1)
    return after.gather(2, torch.tensor(texts)[:, :, None])[:, :, 0].prod(1)


def p_value(name: str, answers: Sequence[Sequence[int]]) -> float:
    """Return the p-value of the counts of answers, by a G-test."""
    places = torch.tensor([VOCAB**place for place in reversed(range(LENGTH))])
    counts = torch.bincount(torch.tensor(answers) @ places, minlength=VOCAB**LENGTH)
    return g_test(counts.numpy(), distribution(name).numpy())


@pytest.fixture
def served(engine, kind: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.getbasetemp() / f"{name} of four tokens"
    folder.mkdir(exist_ok=True)
    sizes = SIZES | {"model": save(name, folder, VOCAB), "max_num_seqs": 64, "max_num_batched_tokens": 512}
    return engine(**RUNNERS[kind], specplug=SETTINGS, name=f"sampled {name} {kind}", **sizes | {"draft_length": 3})


def sample(llm: Any, prompt: list[int], requested: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answers' ids, and how many drafts were accepted and verified."""
    stage = watching.drafting(llm).stage
    before = stage.metrics.snapshot()
    params = [inside.sampling(own) for own in requested]
    outputs = llm.generate([{"prompt_token_ids": prompt}] * len(requested), params, use_tqdm=False)
    counts = (stage.metrics.snapshot() - before).as_dict()
    return {"answers": [list(output.outputs[0].token_ids) for output in outputs], **counts["total"]}


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_answers_have_the_models_distribution(kind, name, served):
    common = {"temperature": TEMPERATURE, "max_tokens": LENGTH, "ignore_eos": True, "detokenize": False}
    likely = int(distribution(name).argmax())
    draft = [likely // VOCAB**place % VOCAB for place in reversed(range(LENGTH))]
    requested = [{**common, **reported(draft[number % 3 :] + draft[: number % 3])} for number in range(ANSWERS)]
    found = served.call(sample, prompt=PROMPT, requested=requested)
    assert 0 < found["accepted"] < found["verified"]
    assert p_value(name, found["answers"]) > 1e-4

    if name == "qwen3_next":  # so many answers do not show its mistakes, which `test_recurrent_mutants` sees
        return
    served.call(plant, mutant="before_the_drafts")
    try:
        mistaken = served.call(sample, prompt=PROMPT, requested=requested)
    finally:
        served.call(plant, mutant=None)
    assert p_value(name, mistaken["answers"]) < 1e-6
