"""The order of rows in a batch: vLLM's recurrent layers take the first prefilling row for the end of those that decode.

A row that decodes behind it would run through the prefill kernels, which do not start from the last accepted token.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.engines.recurrent_requests import drawn
from tests.engines.vllm import inside
from tests.engines.vllm.test_recurrent import DRAFT_LENGTH, VARYING, assert_right, hybrid, joining, wrong

__all__ = ["hybrid"]

GIVEN = drawn(3, 60, 1, 60, 5, 60, 1, 60, 2, 60)


def reorder(llm: Any, threshold: int, ours: bool) -> int:
    """Let V1 take rows of more tokens than `threshold` for prompts; return the threshold before."""
    runner = inside.runner(llm)
    if not hasattr(runner, "specplug_test_order"):
        runner.specplug_test_order = runner._may_reorder_batch
    order = runner.specplug_test_order
    runner._may_reorder_batch = order if ours else order.__wrapped__
    before, runner.reorder_batch_threshold = runner.reorder_batch_threshold, threshold
    return int(before)


def test_on_v1_with_attention_that_takes_drafts_for_prompts(hybrid):
    """As FlashInfer's does where it has no decode kernel for several tokens per row."""
    served = hybrid("v1", "falcon_h1", VARYING)
    assert_right(served, "falcon_h1", GIVEN)  # the order is ours from the first step on
    before = served.call(reorder, threshold=1, ours=False)
    assert before == DRAFT_LENGTH + 1  # attention on CPUs has no opinion
    try:
        run = served.call("inside.drive", requests=joining("falcon_h1", GIVEN))
        assert wrong(run, "falcon_h1", GIVEN) > 5  # else vLLM has been fixed
        served.call(reorder, threshold=1, ours=True)
        assert_right(served, "falcon_h1", GIVEN)
    finally:
        served.call(reorder, threshold=before, ours=True)


def test_on_v1_decodes_keep_their_order():
    from specplug_vllm.startup import recurrent

    rows = {  # computed tokens, prompt, scheduled now
        "plain": (9, 9, 1),
        "end of a prompt": (8, 9, 1),
        "piece of a prompt": (32, 90, 5),
        "drafted": (20, 9, 5),
        "new": (0, 5, 5),
        "another": (12, 9, 3),
    }
    batch = FakeBatch(list(rows), *np.array(list(rows.values()))[:, :2].T)
    recurrent._sort_decodes(batch, {name: scheduled for name, (_, _, scheduled) in rows.items()}, 1)
    decodes = ["plain", "drafted", "another"]
    assert batch.req_ids == [*decodes, *(name for name in rows if name not in decodes)]
    assert batch.num_computed_tokens_cpu.tolist() == [rows[name][0] for name in batch.req_ids]


class FakeBatch:
    """V1's batch, as far as rows are sorted."""

    def __init__(self, names: list[str], computed: Any, prompt: Any) -> None:
        self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens = names, computed.copy(), prompt.copy()

    def swap_states(self, one: int, other: int) -> None:
        for column in (self.req_ids, self.num_computed_tokens_cpu, self.num_prompt_tokens):
            column[one], column[other] = column[other], column[one]


def test_on_v2(monkeypatch):
    from vllm.v1.worker.gpu import model_runner

    from specplug_vllm.startup import recurrent

    decodes = {"drafted": 4, "full": DRAFT_LENGTH + 1, "plain": 1}
    prefills = {"as long as a verification": DRAFT_LENGTH + 1, "fresh": 1, "long": 40}
    counts = {**prefills, **decodes, "last of a prompt": 1}
    drafts = {"drafted": [-1] * 3, "full": [-1] * DRAFT_LENGTH}
    names = list(counts)
    computed = {name: 7 if name in decodes else 6 if name == "last of a prompt" else 0 for name in names}
    states = SimpleNamespace(
        req_id_to_index={name: slot for slot, name in enumerate(names)},
        num_computed_prefill_tokens=np.array([computed[name] for name in names]),
        prefill_len=SimpleNamespace(np=np.array([7 if computed[name] else counts[name] for name in names])),
    )
    baseline = model_runner.sort_batch_req_ids(counts, drafts, DRAFT_LENGTH + 1)
    assert baseline.index("as long as a verification") < baseline.index("plain")  # else vLLM has been fixed

    monkeypatch.setattr(model_runner, "sort_batch_req_ids", model_runner.sort_batch_req_ids)
    for of_runner in (SimpleNamespace(), states):  # the second runner of a process takes the first one's place
        recurrent.install_worker(SimpleNamespace(req_states=of_runner))
    found = model_runner.sort_batch_req_ids(counts, drafts, DRAFT_LENGTH + 1)
    assert set(found[: len(decodes) + 1]) == {*decodes, "last of a prompt"}
    assert [name for name in baseline if name in prefills] == [name for name in found if name in prefills]
