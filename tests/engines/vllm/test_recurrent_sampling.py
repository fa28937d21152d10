"""Sampled output of models with recurrent state: exact probabilities of whole answers against observed counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.recurrent_answers import LENGTH, PROMPT, TEMPERATURE, VOCAB, drafts, p_value
from tests.engines.recurrent_models import save
from tests.engines.vllm import inside, watching
from tests.engines.vllm.referee import RUNNERS, reported
from tests.engines.vllm.test_recurrent import HYBRIDS, SIZES, VARYING
from tests.engines.vllm.test_recurrent_mutants import plant

SETTINGS = {**VARYING, "options": {"ladder": {"draft_lengths": (3, 0, 2, 3, 1)}}}

PAIRS = [(kind, name) for kind in RUNNERS for name in HYBRIDS]
FAST = [("v1", "falcon_h1")]
SPLIT = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]


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
    requested = [{**common, **reported(draft)} for draft in drafts(name)]
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
