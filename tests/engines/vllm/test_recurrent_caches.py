"""Models with recurrent state where blocks are short: prefix caching, preemption, prompts in pieces.

With prefix caching vLLM keeps a state at the ends of blocks, and moves the state of each request from block to block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engines.engines import Engine
from tests.engines.recurrent_requests import Prompt, answers, drawn, prompts
from tests.engines.vllm import launch
from tests.engines.vllm.referee import RUNNERS
from tests.engines.vllm.test_recurrent import DRAFT_LENGTH, HYBRIDS, VARYING, Serve, assert_right, hybrid

__all__ = ["hybrid"]

GIVEN = prompts(11, DRAFT_LENGTH)[4::2]
CACHED = {"enable_prefix_caching": True, "block_size": 32, "max_num_batched_tokens": 64}
BLOCKS = {"falcon_h1": 23, "lfm2": 26, "qwen3_next": 26}
"""Blocks for three or four requests, one of which must give its own up when texts grow beyond a block."""

# On V1, too, vLLM moves states between blocks with kernels in Triton.
INTERPRETED = {
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "PYTHONPATH": os.pathsep.join(
        map(str, [launch.PLUGINS, launch.VLLM_NAME, launch.TRITON_CPU, launch.RECURRENT_CPU])
    ),
}

PAIRS = [(kind, name) for kind in RUNNERS for name in HYBRIDS]
FAST = [("v2_async", "falcon_h1")]
SPLIT = [pytest.param(*pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS]


def start(hybrid: Serve, kind: str, name: str, **sizes: Any) -> Engine:
    interpreted = kind == "v1" and sizes.get("enable_prefix_caching")
    return hybrid(kind, name, VARYING, **sizes, **({"environment": INTERPRETED} if interpreted else {}))


def hits(served: Engine) -> float:
    return float(served.call("inside.metrics")["vllm:prefix_cache_hits"])


def continued(name: str, given: Sequence[Prompt]) -> list[Prompt]:
    """Return prompts that go on after their answers, as a chat does."""
    return [(*prompt, *answer, 7, 3) for prompt, answer in zip(given, answers(name, given), strict=True)]


@pytest.mark.parametrize(("kind", "name"), SPLIT)
def test_prefix_caching(kind, name, hybrid):
    served = start(hybrid, kind, name, **CACHED)
    assert_right(served, name, GIVEN)
    once = hits(served)
    assert once > 0  # of prompts with a shared beginning
    assert_right(served, name, continued(name, GIVEN))
    assert hits(served) > once


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), PAIRS)
@pytest.mark.parametrize("cached", [False, True], ids=["none", "cached"])
def test_preemption(cached, kind, name, hybrid):
    sizes = {**(CACHED if cached else {}), "block_size": 32, "num_gpu_blocks_override": BLOCKS[name]}
    run = assert_right(start(hybrid, kind, name, **sizes), name, drawn(*[50, 51, 52, 53, 54, 55] * 2))
    assert run["preemptions"] > 0
