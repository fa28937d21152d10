"""SGLang's hierarchical cache: blocks of prompts and answers, which drafts wrote into, return from host memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specplug.testing.equality import judge_greedy
from tests.engines.plain import forward, greedy, prompts
from tests.engines.sglang import inside
from tests.engines.sglang.engines import Engine

GIVEN = [list(prompt) for prompt in prompts()[:6]]


@pytest.fixture(scope="module")
def ours(engine: Callable[..., Engine]) -> Engine:
    """An engine with room for two of the prompts, and for all of them in host memory."""
    return engine(
        "SPECPLUG",
        enable_hierarchical_cache=True,
        hicache_ratio=8.0,
        hicache_write_policy="write_through",
        hicache_io_backend="direct",
        hicache_mem_layout="layer_first",
        max_total_tokens=600,
        max_running_requests=2,
        name="specplug, hierarchical cache",
    )


@pytest.mark.slow  # an engine of its own
def test_blocks_that_were_offloaded(ours):
    answers = [greedy(tuple(prompt))["token_ids"] for prompt in GIVEN]
    going_on = [[*prompt, *answer] for prompt, answer in zip(GIVEN, answers, strict=True)]
    for round, given in enumerate((GIVEN, GIVEN, going_on)):
        found = ours.call(inside.generate, prompts=given)
        expected = [greedy(tuple(prompt))["token_ids"] for prompt in given]
        judge_greedy(forward, given, expected, [answer["token_ids"] for answer in found]).assert_ok()
        assert sum(answer["meta"].get("spec_num_correct_drafts", 0) for answer in found) > 50
        fetched = [(answer["meta"].get("cached_tokens_details") or {}).get("host", 0) for answer in found]
        assert sum(fetched) > sum(map(len, given)) / 2 if round else not any(fetched)
