"""Models with recurrent state on vLLM, on kernels that roll back (see `tests.engines.recurrent_cpu`).

Planted mistakes undo what specplug fixes: the padding of new requests, and the order of rows, of which vLLM's recurrent
layers take the first prefilling one for the end of those that decode.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from tests.engines.recurrent_requests import drawn
from tests.engines.suites.recurrent import DRAFT_LENGTH, RecurrentSuite
from tests.engines.vllm import inside, launch

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
NEW = drawn(3, *[1] * 9)
ROWS = drawn(*[3, 60, 1, 60, 5, 60, 1, 60, 2, 60] * 3)
"""Prompts of one token among others, and prompts that are read in pieces among others that decode."""


class TestRecurrent(RecurrentSuite):
    model = "model"
    how: ClassVar[dict[str, Any]] = {
        "recurrent": True,
        "draft_length": DRAFT_LENGTH,
        "skip_tokenizer_init": True,
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "enable_prefix_caching": False,
    }
    caching: ClassVar[dict[str, Any]] = CACHED
    sampling: ClassVar[dict[str, Any]] = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    params: ClassVar[dict[str, Any]] = {"detokenize": False}
    models: ClassVar[Sequence[str]] = ("falcon_h1", "lfm2", "qwen3_next")
    fast: ClassVar[dict[str, Any]] = {
        "": [("v1", "falcon_h1")],
        "test_prompts_whose_beginnings_are_cached": [("v2_async", "falcon_h1")],
    }

    def test_prompts_whose_beginnings_are_cached(self, launch, kind, name):
        self.caching = {**CACHED, **({"environment": INTERPRETED} if kind == "v1" else {})}  # type: ignore[misc]
        super().test_prompts_whose_beginnings_are_cached(launch, name)

    @pytest.mark.slow
    def test_preemption(self, launch, kind, name):
        served = launch(name, block_size=32, num_gpu_blocks_override=BLOCKS[name])
        self.assert_right(served, name, drawn(*[50, 51, 52, 53, 54, 55] * 2))
        assert served.engine.call("inside.metrics")["vllm:num_preemptions"] > 0

    def test_placeholders_of_a_new_prompt_of_one_token_are_seen(self, launch, kind, name):
        """vLLM pads such a prompt, if others decode, and runs it as a prefill, which keeps the last state alone."""
        served = launch(name)
        self.assert_right(served, name, NEW)
        assert served.engine.call(pad_new_requests, most=DRAFT_LENGTH) == 0
        try:
            assert self.wrong(served, name, NEW) > 0  # else vLLM has been fixed
        finally:
            served.engine.call(pad_new_requests, most=0)

    def test_rows_that_attention_takes_for_prompts(self, launch, kind, name):
        """On V1 as FlashInfer's does where it decodes no several tokens per row; on V2 by vLLM's own order."""
        if name == "qwen3_next":
            pytest.skip("it takes rows by their drafts")
        served = launch(name)
        reorder = reorder_on_v1 if kind == "v1" else reorder_on_v2
        given, caps = (ROWS, (None,)) if kind == "v1" else (drawn(*[DRAFT_LENGTH + 1] * 10), (0, DRAFT_LENGTH, 0))
        self.assert_right(served, name, given, caps)  # the order is ours from the first step on
        served.engine.call(reorder, ours=False)
        try:
            assert self.wrong(served, name, given, caps) > 0  # else vLLM has been fixed
        finally:
            served.engine.call(reorder, ours=True)

    def test_timed_steps_have_short_contexts(self, launch, kind, name):
        """These layers compute a whole prompt, which the limit on the seconds of timed steps does not count."""
        found = launch(name).engine.call(timed_contexts)
        assert len(found) > 2
        assert 16 <= found[0] < 32


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["v2", "v2_async"], indirect=True, scope="session")
class TestWithoutAttention(TestRecurrent):
    """vLLM keeps no states of such a model, and does not order its rows."""

    models: ClassVar[Sequence[str]] = ("mamba2",)
    test_prompts_whose_beginnings_are_cached = test_preemption = None  # type: ignore[assignment]
    test_rows_that_attention_takes_for_prompts = None  # type: ignore[assignment]
    test_placeholders_of_a_new_prompt_of_one_token_are_seen = None  # type: ignore[assignment]
    test_sampled_answers_have_the_models_distribution = None  # type: ignore[assignment]


def timed_contexts(llm: Any) -> list[int]:
    """Time steps of an engine as at its start; return each request's tokens of context."""
    from specplug_vllm.scheduler import timing
    from specplug_vllm.scheduler.timed import measure_steps

    core = inside.core(llm)
    return [
        cost.context_tokens // cost.requests
        for cost in measure_steps(core, timing._limits(core.vllm_config), 2.0).costs
    ]


# -- mistakes, in the engine's process ---------------------------------------------------------------------------------


def pad_new_requests(llm: Any, most: int) -> int:
    """Let the scheduler pad new requests with up to so many placeholder drafts; return the number before."""
    scheduler = inside.scheduler(llm)
    before = scheduler._most_placeholders
    scheduler._most_placeholders = most
    return int(before)


def reorder_on_v1(llm: Any, ours: bool) -> None:
    """Let V1 take rows of several tokens for prompts, and order rows as specplug does or as vLLM does."""
    runner = inside.runner(llm)
    if not hasattr(runner, "specplug_test_order"):
        runner.specplug_test_order = runner._may_reorder_batch, runner.reorder_batch_threshold
    order, threshold = runner.specplug_test_order
    runner._may_reorder_batch = order if ours else order.__wrapped__
    runner.reorder_batch_threshold = threshold if ours else 1


def reorder_on_v2(llm: Any, ours: bool) -> None:
    """Let V2 order rows as specplug does or as vLLM does."""
    from vllm.v1.worker.gpu import model_runner

    if not hasattr(model_runner, "specplug_test_sort"):
        model_runner.specplug_test_sort = model_runner.sort_batch_req_ids
    order = model_runner.specplug_test_sort
    model_runner.sort_batch_req_ids = order if ours else order._specplug_original
