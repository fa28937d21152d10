"""Mistakes of vLLM that show with any speculation, and would end or bias a server that speculates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def install() -> None:
    """Mend V1's rejection sampling on a CPU, once per process."""
    import vllm.v1.sample.rejection_sampler as module

    if not hasattr(module.expand_batch_to_tokens, "_specplug"):
        module.expand_batch_to_tokens = _expanding_on_a_cpu(module.expand_batch_to_tokens)
        module.apply_sampling_constraints = _passing_nothing(module.apply_sampling_constraints)


def _passing_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let steps without a single draft pass: since 0.32 they come here too, and on a CPU top-k raises at them."""

    @functools.wraps(original)
    def apply_sampling_constraints(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if len(logits) else logits

    return apply_sampling_constraints


def _expanding_on_a_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Give each draft token its row's temperature, top-k and top-p on a CPU.

    The CPU's kernel takes int64 alone.  For anything else vLLM hands it a converted copy of the output and drops that,
    so that sampling reads memory that nobody has written.
    """

    @functools.wraps(original)
    def expand_batch_to_tokens(
        x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        if x.device.type != "cpu":
            return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        rows = torch.searchsorted(cu_num_tokens, torch.arange(num_tokens, dtype=cu_num_tokens.dtype), right=True)
        return torch.where(x == replace_from, replace_to, x).to(x.dtype)[rows]

    expand_batch_to_tokens._specplug = True  # type: ignore[attr-defined]
    return expand_batch_to_tokens


def spread_adapters(lora_state: Any, verified: Callable[[], Mapping[str, Sequence[int]]]) -> None:
    """Let V2 name an adapter for every row of logits.

    It names one per request, which is right while each has one row.  With drafts to verify the rows are more, and an
    adapter of the output layer is applied to the wrong ones, or none.

    Args:
        lora_state: the runner's `LoraState`.
        verified: returns, by request id, the draft tokens that the step at hand verifies.
    """
    original = lora_state.make_lora_inputs

    @functools.wraps(original)
    def make_lora_inputs(req_ids: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        by_request, *others = original(req_ids, *args, **kwargs)
        if len(by_request) != len(req_ids):  # a vLLM that names them by row itself
            return by_request, *others
        drafts = verified()
        rows = [1 + len(drafts.get(name, ())) for name in req_ids]
        return tuple(np.repeat(by_request, rows)), *others

    lora_state.make_lora_inputs = make_lora_inputs
