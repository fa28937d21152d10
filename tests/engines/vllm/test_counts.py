"""specplug's counts beside vLLM's own, of the same requests."""

from __future__ import annotations

from tests.engines.vllm.referee import MAX_TOKENS, baseline, kind, prompts, reported, truth, zoo

__all__ = ["baseline", "kind", "truth", "zoo"]


def test_vllm_counts_the_accepted_tokens_after_an_end_too(zoo, truth):
    """Under async scheduling a row runs once more after its end, and vLLM drops that step without counting it.

    The drafts go on after the ends with what plain decoding would write there, so that they would be accepted.
    """
    answers = [answer["token_ids"] for answer in truth[:6]]
    params = [{"stop_token_ids": [answer[MAX_TOKENS // 2]], **reported(answer)} for answer in answers]
    found = zoo.call("watching.counted", prompts=[list(prompt) for prompt in prompts()[:6]], params=params)
    assert {answer["finish_reason"] for answer in found["result"]} == {"stop"}
    total, dropped = found["total"], found["accepted_by_vllm"] - found["total"]["accepted"]
    assert total["emitted"] == sum(len(answer["token_ids"]) for answer in found["result"])
    assert total["emitted"] == total["target_steps"] + total["accepted"]
    assert 0 < dropped <= total["after_stop"]
