"""Models with recurrent state on SGLang: LFM2's short convolutions, and Mamba-2 layers beside attention."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from tests.engines.engines import Raised
from tests.engines.recurrent_models import save
from tests.engines.sglang.launch import SMALL
from tests.engines.sglang.test_registration import outcome
from tests.engines.suites.recurrent import DRAFT_LENGTH, RecurrentSuite


class TestRecurrent(RecurrentSuite):
    """With its radix cache SGLang overlaps no steps of such a model on a CPU."""

    model = "model_path"
    how: ClassVar[dict[str, Any]] = {
        "draft_length": DRAFT_LENGTH,
        "skip_tokenizer_init": True,
        "context_length": 256,
        "max_running_requests": 4,
        "chunked_prefill_size": 24,
        "disable_radix_cache": True,
    }
    caching: ClassVar[dict[str, Any]] = {"disable_radix_cache": False, "overlap": False}
    sampling: ClassVar[dict[str, Any]] = {"sampling": True, "max_running_requests": 64, "chunked_prefill_size": 512}
    models = ("lfm2", "nemotron_h", "falcon_h1")
    fast: ClassVar[dict[str, Any]] = {
        "": [("overlap", "lfm2"), ("overlap", "nemotron_h")],
        "test_prompts_whose_beginnings_are_cached": [("overlap", "lfm2")],
        "test_sampled_answers_have_the_models_distribution": [("overlap", "lfm2")],
    }


def test_trees_are_refused(baseline, tmp_path):
    """SGLang's layers go by no parents; its own n-gram drafts trees for such models, whose text is wrong."""
    requested = {**SMALL, "model_path": save("lfm2", tmp_path), "skip_tokenizer_init": True, "context_length": 128}
    found = baseline.call(outcome, arguments={**requested, "speculative_eagle_topk": 4})
    assert found.startswith("ValueError: specplug_sglang: trees"), found
    for part in ("recurrent state", "Lfm2ForCausalLM", "--speculative-eagle-topk 4", "--speculative-eagle-topk 1"):
        assert part in found
    assert baseline.call(outcome, arguments={**requested, "disable_radix_cache": True}) == "started"


def test_states_that_only_one_draft_length_can_read_are_refused(baseline):
    """KDA's fused accept, which SGLang has on GPUs only."""
    with pytest.raises(Raised, match="KDA's fused accept") as raised:
        baseline.call(fuse_accept)
    assert raised.value.type == "EngineError"
    assert "--linear-attn-verify-backend" in raised.value.text


def fuse_accept(engine: Any) -> None:
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import HybridLinearAttnBackend
    from sglang.srt.layers.attention.linear.kda_backend import KDAAttnBackend

    from specplug_sglang.verification.draft_lengths import refuse_fused_accept

    attention = object.__new__(HybridLinearAttnBackend)
    attention.linear_attn_backend = object.__new__(KDAAttnBackend)
    refuse_fused_accept(attention)  # as it is where the flags do not ask for it
    attention.linear_attn_backend.accept_lens_pool = torch.ones(3, dtype=torch.int32)
    refuse_fused_accept(attention)
