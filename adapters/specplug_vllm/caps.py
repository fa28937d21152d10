"""Capabilities of a vLLM server as its engine, and the context of its plug-ins, derived from its `VllmConfig`."""

from __future__ import annotations

from typing import Any

from specplug.interfaces import PluginContext
from specplug.types.caps import Distribution, DraftLengthChange, EngineCaps, Ragged
from specplug_vllm.config import (
    cuts_on_device,
    engine_method,
    engine_tokens,
    has_lockstep_ranks,
    may_skip_drafts,
    runner_of,
)


def engine_caps(vllm_config: Any) -> EngineCaps:
    """Return the engine's capabilities under this configuration."""
    spec = vllm_config.speculative_config
    parallel = vllm_config.parallel_config
    v2 = runner_of(vllm_config) == "v2"
    cuts = cuts_on_device(vllm_config)
    if engine_method(vllm_config) is not None:  # nothing trims its drafts: rows are as long as the plan and its caps
        ragged = Ragged.PADDED if v2 else Ragged.COSTS_FULL_GRAPH
    else:
        ragged = Ragged.PADDED if v2 and not cuts else Ragged.NATIVE
    several_ranks = parallel.tensor_parallel_size > 1  # full distributions are not sent from rank to rank
    distribution = Distribution.LOGITS if v2 else Distribution.PROBS
    return EngineCaps(
        max_draft_length=spec.num_speculative_tokens,
        captured_draft_lengths=_ladder(vllm_config) if v2 and not cuts else (),
        ragged=ragged,
        draft_length_change=_draft_length_change(vllm_config, v2),
        # Confidences, and so the drafted tokens, decide which tokens are cut: only one-hot drafts stay lossless.
        draft_input=Distribution.ONE_HOT if several_ranks or cuts else distribution,
        tensor_parallel_size=parallel.tensor_parallel_size,
        verifies_budget=cuts,
        engine_tokens=engine_tokens(vllm_config),
    )


def target_fields(vllm_config: Any) -> dict[str, Any]:
    """Return what a `PluginContext` holds of the target model; no tokenizer if the server runs without one."""
    model = vllm_config.model_config
    tokenizer = None
    if not model.skip_tokenizer_init:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
    return {"target_path": model.model, "target_config": model.hf_config, "target_tokenizer": tokenizer}


def plugin_context(vllm_config: Any, seed: int, **place: Any) -> PluginContext:
    """Return the context that plug-ins are built with; `place` is the device and the rank, where they matter."""
    return PluginContext(
        caps=engine_caps(vllm_config),
        vocab_size=vllm_config.model_config.get_vocab_size(),
        max_slots=vllm_config.scheduler_config.max_num_seqs,
        max_length=vllm_config.model_config.max_model_len,
        seed=seed,
        **target_fields(vllm_config),
        **place,
    )


def _ladder(vllm_config: Any) -> tuple[int, ...]:
    """Return the draft lengths that have CUDA graphs, as named by the launch; () allows any draft length.

    Ranks that step together have one length, and 0 if they may do without drafts.

    vLLM captures a draft length for the batch sizes listed with it, so one listed only for batches larger than
    ``max_num_seqs`` has no graphs.
    """
    spec = vllm_config.speculative_config
    largest = vllm_config.scheduler_config.max_num_seqs
    if has_lockstep_ranks(vllm_config):
        return (0, spec.num_speculative_tokens) if may_skip_drafts(vllm_config) else ()
    schedule = getattr(spec, "num_speculative_tokens_per_batch_size", None) or ()
    return tuple(sorted({min(int(w), spec.num_speculative_tokens) for first, _, w in schedule if first <= largest}))


def _draft_length_change(vllm_config: Any, v2: bool) -> DraftLengthChange:
    if has_lockstep_ranks(vllm_config):
        return DraftLengthChange.FIXED  # other lengths take all ranks off their graphs, or deadlock a drafter of vLLM's
    if not v2 or cuts_on_device(vllm_config) or not _ladder(vllm_config):
        return DraftLengthChange.FREE
    return DraftLengthChange.CAPTURED
