"""Drafts of a model with another tokenizer: greedy output equals vLLM's, and samples have the target's distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engines import crosstok
from tests.engines.engines import Engine
from tests.engines.launches import most
from tests.engines.plain import MAX_TOKENS, Answers, assert_greedy, prompts
from tests.engines.vllm import inside
from tests.engines.vllm.launch import RUNNERS
from tests.engines.vllm.test_no_sync import steady_steps

PROMPTS = [list(prompt) for prompt in prompts()]


PAIRS = {
    "another tokenizer": crosstok.settings(),
    "common ids": crosstok.settings(route="tli"),
    "one tokenizer": crosstok.settings("tiny-draft"),
    "on the device": crosstok.on_device(),
    "with lookup": {**crosstok.settings(), "proposer": "hybrid"},
}
# V2 runs in Triton's interpreter, so of its engines these, which draw their tokens, have to do, with fewer requests.
ON_DEVICE = ("v2_async", "on the device")
KINDS = [
    ("v1", "another tokenizer"),
    pytest.param("v1", "one tokenizer", marks=pytest.mark.slow),
    ON_DEVICE,
    pytest.param("v2", "common ids", marks=pytest.mark.slow),  # on the host, as on a CPU
]


@pytest.fixture(scope="session", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def paired(kind: str, pair: str, engine: Callable[..., Engine]) -> Engine:
    """An engine with a draft model."""
    name = f"crosstok {kind}, {pair}"
    return engine(**RUNNERS[kind], specplug=PAIRS[pair], name=name, max_num_seqs=32, draft_length=4)


@pytest.mark.parametrize(
    ("kind", "pair"),
    [
        *[pair for pair in KINDS if pair != ON_DEVICE],
        ("v1", "with lookup"),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in (ON_DEVICE, ("v2_async", "with lookup"))),
    ],
    indirect=True,
)
def test_greedy(kind: str, pair: str, paired: Engine, truth: Answers) -> None:
    texts = PROMPTS if kind == "v1" else PROMPTS[:12]
    found = paired.call("served.counted", prompts=texts, params=[{"max_tokens": MAX_TOKENS}] * len(texts))
    assert_greedy(texts, truth[: len(texts)], found["answers"])
    assert not found["faults"]
    assert found["total"]["tau"] > 1.3
    if pair == "with lookup":
        parts = dict.fromkeys(("ngram", "crosstok"), 0)
        for name, counts in found["by_source"].items():
            if name.startswith("hybrid/"):
                parts[name.split("/")[1]] += counts["accepted"]
        assert min(parts.values()) > 0  # the model runs at least in the first steps, whose times are not known yet


@pytest.mark.parametrize(("kind", "pair"), KINDS, indirect=True)
def test_sampled(kind: str, pair: str, paired: Engine) -> None:
    texts, params = crosstok.requests(384 if kind == "v1" else 96)
    limits = {"max_tokens": crosstok.LENGTH + 1, "ignore_eos": True}
    found = paired.call("served.counted", prompts=texts, params=[{**own, **limits} for own in params])
    assert not found["faults"]
    name = PAIRS[pair]["proposer"]
    tested = found["by_source"][f"{name}/common ids"]
    assert min(tested["accepted"], tested["rejected"]) > 15
    assert crosstok.p_value([answer["token_ids"] for answer in found["answers"]]) > 1e-4


@pytest.mark.parametrize(("kind", "pair"), [ON_DEVICE], indirect=True)
def test_a_step_on_the_device_waits_for_nothing(kind: str, paired: Engine) -> None:
    """Nothing is read back or copied in; what a GPU runs as CUDA graphs counts once each."""
    found = paired.call(steady, requested=PROMPTS[:3])
    assert found["steps"] > 3
    assert found["found"] == []
    assert found["proposed"] > 10
    own = (found["own"] + found["graphs"]) / found["steps"]
    assert own <= most("`crosstok`", "the proposer's own")
    assert (found["launches"] + found["graphs"]) / found["steps"] <= most("V2", "`crosstok`", "in all")


def steady(llm: Any, requested: list[list[int]]) -> dict[str, Any]:
    """Watch steady steps inside the engine's process."""
    proposer = inside.runner(llm).speculator.drafting.stage.runners[0].handle.proposer
    taken = crosstok.by_one_graph_each(proposer._step)
    per_step = []
    propose = proposer.propose

    def counting(*args: Any) -> None:
        propose(*args)
        per_step.append(taken())

    proposer.propose = counting
    found = steady_steps(llm, requested)
    return {**found, "graphs": max(per_step) * found["steps"]}
