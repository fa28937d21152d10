"""Drafts of a model with another tokenizer: greedy output equals vLLM's, and samples have the target's distribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engines import crosstok
from tests.engines.engines import Engine
from tests.engines.plain import assert_greedy
from tests.engines.vllm.referee import MAX_TOKENS, RUNNERS, Answers, baseline, kind, prompts, truth

__all__ = ["baseline", "kind", "truth"]

PROMPTS = [list(prompt) for prompt in prompts()]


PAIRS = {
    "another tokenizer": crosstok.settings(),
    "common ids": crosstok.settings(route="tli"),
    "one tokenizer": crosstok.settings("tiny-draft"),
}
# V2 runs in Triton's interpreter, so of its engines one, which draws its tokens, has to do, with fewer requests.
KINDS = [("v1", "another tokenizer"), ("v1", "one tokenizer"), ("v2", "common ids"), ("v2_async", "common ids")]


@pytest.fixture(scope="session", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def paired(kind: str, pair: str, engine: Callable[..., Engine]) -> Engine:
    """An engine with a draft model."""
    name = f"crosstok {kind}, {pair}"
    return engine(**RUNNERS[kind], specplug=PAIRS[pair], name=name, max_num_seqs=32, draft_length=4)


@pytest.mark.parametrize(("kind", "pair"), KINDS, indirect=True)
def test_greedy(kind: str, paired: Engine, truth: Answers) -> None:
    texts = PROMPTS if kind == "v1" else PROMPTS[:12]
    found = paired.call("watching.counted", prompts=texts, params=[{"max_tokens": MAX_TOKENS}] * len(texts))
    assert_greedy(texts, truth[: len(texts)], found["result"])
    assert not found["faults"]
    assert found["total"]["tau"] > 1.3


@pytest.mark.parametrize(("kind", "pair"), KINDS, indirect=True)
def test_sampled(kind: str, paired: Engine) -> None:
    texts, params = crosstok.requests(384 if kind == "v1" else 96)
    limits = {"max_tokens": crosstok.LENGTH + 1, "ignore_eos": True}
    found = paired.call("watching.counted", prompts=texts, params=[{**own, **limits} for own in params])
    assert not found["faults"]
    tested = found["by_source"]["crosstok/common ids"]
    assert min(tested["accepted"], tested["rejected"]) > (30 if kind == "v1" else 15)
    assert crosstok.p_value([answer["token_ids"] for answer in found["result"]]) > 1e-4
