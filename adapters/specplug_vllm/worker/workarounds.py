"""Workarounds for what in vLLM would crash, bias or slow any server with speculative decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug_vllm import seams


def install() -> None:
    """Patch V1's rejection sampling, once per process."""
    import vllm.v1.sample.rejection_sampler as module

    hook(module, "expand_batch_to_tokens", _expand_batch_to_tokens)
    hook(module, "apply_sampling_constraints", _apply_sampling_constraints)
    hook(module, "rejection_sample", _rejection_sample)
    hook(module.RejectionSampler, "forward", _forward)


def install_thinking_budgets() -> None:
    """Patch V1's count of thinking tokens, once per process."""
    seams.require("thinking budgets")
    from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

    hook(ThinkingBudgetStateHolder, "update_state", _update_thinking)


def _update_thinking(
    original: Callable[..., None], holder: Any, output_token_ids: Sequence[Sequence[int]], *args: Any, **kwargs: Any
) -> None:
    """Let the end of the reasoning be forced again where the token on which it was forced has been dropped.

    A chunk of a prompt samples a token that vLLM drops.  With speculation vLLM notes the end as forced all the same.
    """
    for row, state in holder._state.items():
        length = len(output_token_ids[row]) if row < len(output_token_ids) else 0
        if state.get("specplug_length") == length:
            state["bonus_token_forced"] = False
        state["specplug_length"] = length
    original(holder, output_token_ids, *args, **kwargs)


def _apply_sampling_constraints(original: Callable[..., Any], logits: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Skip steps without drafts: they reach this function too, and on a CPU top-k raises on them."""
    return original(logits, *args, **kwargs) if len(logits) else logits


def _forward(
    original: Callable[..., Any], sampler: Any, metadata: Any, draft_probs: Any, logits: Tensor, sampling_metadata: Any
) -> Any:
    """Sample steps without drafts from the logits themselves, [B, V], of which vLLM would take a copy.

    Of 32 requests and 49,152 tokens that copy takes a hundredth of a small model's step on a CPU.
    """
    if len(metadata.draft_token_ids) or sampling_metadata.max_num_logprobs is not None:
        return original(sampler, metadata, draft_probs, logits, sampling_metadata)
    return sampler.sampler(logits=logits, sampling_metadata=sampling_metadata, predict_bonus_token=True)


def _rejection_sample(
    original: Callable[..., Any], draft_token_ids: Tensor, counts: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """Skip the verification of steps without drafts.

    They emit the bonus tokens, [B, 1] int32.  vLLM would draw a random number for every entry of the vocabulary in
    every row, which takes a twentieth of a small model's step on a CPU.
    """
    if len(draft_token_ids):
        return original(draft_token_ids, counts, *args, **kwargs)
    _max_spec_len, _ends, _draft_probs, _target_logits, bonus_token_ids = args[:5]
    return bonus_token_ids.int()


def _expand_batch_to_tokens(
    original: Callable[..., Any],
    x: Tensor,
    cu_num_tokens: Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> Any:
    """Give each draft token its row's temperature, top-k and top-p on a CPU.

    The CPU kernel takes int64 only.  For other dtypes vLLM passes it a converted copy of the output and drops the copy,
    so sampling reads uninitialised memory.
    """
    if x.device.type != "cpu":
        return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
    rows = torch.searchsorted(cu_num_tokens, torch.arange(num_tokens, dtype=cu_num_tokens.dtype), right=True)
    return torch.where(x == replace_from, replace_to, x).to(x.dtype)[rows]


def apply_adapters_by_row(lora_state: Any, verified: Callable[[], Mapping[str, Sequence[int]]]) -> None:
    """Patch V2 to name a LoRA adapter for every row of logits.

    vLLM names one per request, which is correct while each request has one row.  With drafts to verify there are more
    rows, and an adapter of the output layer is applied to the wrong rows or to none.

    Args:
        lora_state: the runner's `LoraState`.
        verified: returns the draft tokens that the current step verifies, by request id.
    """
    original = lora_state.make_lora_inputs

    @functools.wraps(original)
    def make_lora_inputs(req_ids: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        by_request, *others = original(req_ids, *args, **kwargs)
        if len(by_request) != len(req_ids):  # this vLLM already names them by row
            return by_request, *others
        drafts = verified()
        rows = [1 + len(drafts.get(name, ())) for name in req_ids]
        return tuple(np.repeat(by_request, rows)), *others

    lora_state.make_lora_inputs = make_lora_inputs
