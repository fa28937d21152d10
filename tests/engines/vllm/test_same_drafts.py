"""A third party's proposer drafts on vLLM's runners as it does elsewhere; see `tests.engines.same_drafts`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specplug.trace import read_trace
from tests.engines import same_drafts
from tests.engines.vllm import inside
from tests.engines.vllm.watching import counts, drafting, plain_name


def served(llm: Any, requests: list[dict[str, Any]], path: str) -> dict[str, list[int]]:
    """Run requests with a trace; return what was answered."""
    stage = drafting(llm).stage
    before = counts(llm)["faults"]
    with same_drafts.traced(stage, path):
        outputs = inside.drive(llm, requests)
    assert counts(llm)["faults"] == before
    return {name: output["token_ids"] for name, output in outputs.items()}


def test_drafts_are_the_same(zoo, tmp_path):
    """Prompts come one after the other."""
    path = tmp_path / "trace.jsonl"
    params = {"max_tokens": same_drafts.MAX_TOKENS, "specplug": {"proposer": same_drafts.PROPOSER}}
    requests = [
        {"id": name, "prompt": prompt, "params": params, "at": 2 * number}
        for number, (name, prompt) in enumerate(same_drafts.requested().items())
    ]
    same_drafts.assert_answers(zoo.call(served, requests=requests, path=str(path)))
    same_drafts.assert_trace([replace(row, request=plain_name(row.request)) for row in read_trace(path)])
