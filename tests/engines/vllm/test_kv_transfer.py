"""Key-value caches that come from elsewhere: from another server's prefill, or from where they were kept before.

Requests then start after most of their prompt, some of them with the last token alone, and some wait for copies.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.equality import judge_greedy
from tests.engines.engines import Engine
from tests.engines.plain import forward, greedy, prompts
from tests.engines.vllm import served
from tests.engines.vllm.launch import RUNNERS

NGRAM = {"proposer": "ngram", "policy": "fixed"}
BLOCK = 32
FETCHED = "vllm:external_prefix_cache_hits"
GIVEN = [list(prompt) for prompt in prompts()[:5]]
GIVEN[-1] = GIVEN[-1][: len(GIVEN[-1]) // BLOCK * BLOCK]  # fills its blocks
CUT = [prompt[: len(prompt) // BLOCK * BLOCK + 1] for prompt in GIVEN if len(prompt) > BLOCK]
"""Prompts of which all but one token may be found."""

OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": 64 << 20,
        "spec_name": "HostMemory",
        "spec_module_path": "tests.engines.vllm.host_memory",
    },
}


def ask(llm: Any, prompts: list[list[int]], max_tokens: int = 40) -> dict[str, Any]:
    """Answer prompts.

    Returns:
        "answers"; "faults" and "accepted" drafts; how many tokens of prompts were "fetched"; how many requests began as
        a decode step, "padded" by vLLM to the rows of others.
    """
    from tests.engines.vllm import inside

    scheduler = inside.scheduler(llm)
    before = inside.metrics(llm)[FETCHED]
    padded = 0

    def schedule(*args: Any, **kwargs: Any) -> Any:
        nonlocal padded
        output = type(scheduler).schedule(scheduler, *args, **kwargs)
        padded += len({new.req_id for new in output.scheduled_new_reqs} & set(output.scheduled_spec_decode_tokens))
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "schedule", schedule)
        found = served.counted(llm, prompts, [{"max_tokens": max_tokens}] * len(prompts))
    return {
        "answers": found["answers"],
        "accepted": found["total"]["accepted"],
        "faults": found["faults"],
        "fetched": inside.metrics(llm)[FETCHED] - before,
        "padded": padded,
    }


def forget(llm: Any) -> bool:
    """Empty the prefix cache, without what is kept elsewhere; return whether it was.  A last step may still run."""
    return any(llm.reset_prefix_cache() or llm.llm_engine.step() for _ in range(10))


def assert_right(given: list[list[int]], found: dict[str, Any]) -> None:
    expected = [greedy(tuple(prompt))["token_ids"] for prompt in given]
    judge_greedy(forward, given, expected, [answer["token_ids"] for answer in found["answers"]]).assert_ok()
    assert not found["faults"]
    assert found["accepted"] > 50


def test_blocks_that_were_offloaded(kind: str, engine: Callable[..., Engine]):
    """Blocks of prompts and of answers, which drafts wrote into, are read back, and requests wait for them."""
    ours = engine(
        **RUNNERS[kind],
        specplug=NGRAM,
        kv_transfer_config=OFFLOADING,
        block_size=BLOCK,
        name=f"{kind} that offloads",
    )
    first = ours.call(ask, prompts=GIVEN)
    assert_right(GIVEN, first)
    going_on = [[*prompt, *answer["token_ids"]] for prompt, answer in zip(GIVEN, first["answers"], strict=True)]
    for given in (CUT, going_on):
        assert ours.call(forget)
        found = ours.call(ask, prompts=given)
        assert_right(given, found)
        assert found["fetched"] > sum(map(len, given)) / 2
        assert bool(found["padded"]) == (given is CUT and kind != "v1")  # V1's rows need no padding


def test_prompts_that_another_server_prefilled(kind: str, engine: Callable[..., Engine], tmp_path: Path):
    """Both servers speculate; the first answers with one token, which the second computes again."""
    servers = [
        engine(
            **RUNNERS[kind],
            specplug=NGRAM,
            block_size=BLOCK,
            max_num_batched_tokens=2048,  # vLLM's example keeps whole prompts only
            enable_prefix_caching=False,
            kv_transfer_config={
                "kv_connector": "ExampleConnector",  # keeps files
                "kv_role": role,
                "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
            },
            name=f"{kind} as {role}",
        )
        for role in ("kv_producer", "kv_consumer")
    ]
    assert servers[0].call(ask, prompts=GIVEN, max_tokens=1)["fetched"] == 0
    found = servers[1].call(ask, prompts=GIVEN)
    assert_right(GIVEN, found)
    assert found["fetched"] > sum(map(len, GIVEN)) / 2
