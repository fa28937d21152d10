"""Under deterministic inference a request with a seed gets one text: SGLang's own without speculation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import toy
from tests.engines.sglang import inside, trees
from tests.engines.sglang.engines import Engine
from tests.engines.sglang.test_exact import small, toys
from tests.engines.sglang.test_sampling import saved

__all__ = ["saved", "small", "toys"]

WHOLE: list[dict[str, Any]] = [{}, {"temperature": 0.6}, {"temperature": 1.3}]
CUT: list[dict[str, Any]] = [{"top_k": 6}, {"top_p": 0.9}, {"top_k": 9, "top_p": 0.9}, {"temperature": 0.0}]
"""Sampling parameters beside the seed, apart: SGLang draws from whole distributions in another way than from cut ones,
and in that way for all requests of a batch.  It takes no seeds with min_p, and overlapped it counts penalties late."""


def seeded(kinds: list[dict[str, Any]], seeds: int = 4) -> list[dict[str, Any]]:
    """Return the sampling parameters of a batch, so many seeds of each kind."""
    shared = {"temperature": 1.0, "max_new_tokens": 40, "ignore_eos": True}
    return [{**shared, "sampling_seed": 1000003 * seed, **kind} for seed in range(seeds) for kind in kinds]


@pytest.fixture
def deterministic(small, toys):
    """SGLang without speculation, and specplug, as ``--enable-deterministic-inference`` sets them up on a CPU."""
    engines = (small(), toys)
    for engine in engines:
        engine.inside(trees.be_deterministic, really=True)
    yield engines
    for engine in engines:
        engine.inside(trees.be_deterministic, really=False)


def texts(engine: Engine, params: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """Return the answers to requests of one batch, and how many draft tokens were accepted."""
    found = engine.call(inside.generate, prompts=[toy.PROMPT] * len(params), params=params)
    accepted = sum(answer["meta"].get("spec_num_correct_drafts", 0) for answer in found)
    return [answer["token_ids"] for answer in found], accepted


def deterministically(engine: Engine, params: list[dict[str, Any]]) -> tuple[list[list[int]], int]:
    """Do as `texts`, on an engine that is deterministic meanwhile."""
    engine.inside(trees.be_deterministic, really=True)
    try:
        return texts(engine, params)
    finally:
        engine.inside(trees.be_deterministic, really=False)


def at_most(cap: int, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "custom_params": {"specplug_num_speculative_tokens": cap}}


@pytest.mark.parametrize("seeds", [4, pytest.param(72, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kinds", [WHOLE, CUT], ids=["whole", "cut"])
def test_a_seed_has_one_text(kinds, seeds, deterministic):
    """Alone and inside a batch, whatever its draft length and that of others."""
    plain, drafted = deterministic
    requested = seeded(kinds, seeds)
    expected, _ = texts(plain, requested)
    assert len({tuple(text) for text in expected}) > len(requested) // 2, "the seeds do something"
    found, accepted = texts(drafted, requested)
    assert found == expected
    assert accepted > 20
    mixed = [at_most(1 + row % 4, params) for row, params in enumerate(requested)]
    assert texts(drafted, mixed)[0] == expected
    for cap in range(4):
        assert texts(drafted, [at_most(cap, requested[cap])])[0] == [expected[cap]]
