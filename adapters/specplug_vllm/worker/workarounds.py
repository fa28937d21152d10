"""Workarounds for what in vLLM would crash, bias or slow any server with speculative decoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug_vllm import seams
from specplug_vllm.config import Runner

Method = Callable[..., Any]

_ids: ContextVar[Any] = ContextVar("specplug_logprob_token_ids", default=None)
"""What the rejection sampler that runs has to look up: on V1 (number of requests, ids by row), on V2 arguments."""


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
    original: Method, holder: Any, output_token_ids: Sequence[Sequence[int]], *args: Any, **kwargs: Any
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


def _apply_sampling_constraints(original: Method, logits: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Skip steps without drafts: they reach this function too, and on a CPU top-k raises on them."""
    return original(logits, *args, **kwargs) if len(logits) else logits


def _forward(
    original: Method, sampler: Any, metadata: Any, draft_probs: Any, logits: Tensor, sampling_metadata: Any
) -> Any:
    """Sample steps without drafts from the logits themselves, [B, V], of which vLLM would take a copy.

    Of 32 requests and 49,152 tokens that copy takes a hundredth of a small model's step on a CPU.
    """
    if len(metadata.draft_token_ids) or sampling_metadata.max_num_logprobs is not None:
        return original(sampler, metadata, draft_probs, logits, sampling_metadata)
    return sampler.sampler(logits=logits, sampling_metadata=sampling_metadata, predict_bonus_token=True)


def _rejection_sample(
    original: Method, draft_token_ids: Tensor, counts: Sequence[int], *args: Any, **kwargs: Any
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
    original: Method,
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


# -- log-probabilities of chosen token ids, at every position of a draft -------------------------------------------


def install_token_logprobs(runner: Runner) -> None:
    """Let the rejection sampler of a runner return the log-probabilities of `logprob_token_ids`, once per process.

    vLLM's rejection samplers leave the ids out: V1's returns nothing for them, and fails where another request asks for
    log-probabilities; V2's returns the most likely tokens instead.  They get them here as vLLM's plain samplers do.
    """
    if runner == "v1":
        seams.require("token logprobs v1")
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler

        hook(RejectionSampler, "forward", _forward_with_ids)
        hook(Sampler, "gather_logprobs", _gather_logprobs)
    else:
        seams.require("token logprobs v2")
        import vllm.v1.worker.gpu.spec_decode.rejection_sampler as module
        from vllm.v1.worker.gpu.sample.sampler import Sampler as SamplerV2

        hook(SamplerV2, "get_logprobs_dims", _get_logprobs_dims)
        hook(module.RejectionSampler, "__call__", _call)
        hook(module.RejectionSampler, "_verify", _verify)
        hook(module.RejectionSampler, "_get_logprobs_tensors", _get_logprobs_tensors)
        hook(module, "compute_topk_scores", _compute_topk_scores)


@contextmanager
def _looking_up(wanted: Any) -> Iterator[None]:
    token = _ids.set(wanted)
    try:
        yield
    finally:
        _ids.reset(token)


def _forward_with_ids(
    original: Method, sampler: Any, metadata: Any, draft_probs: Any, logits: Tensor, sampling: Any
) -> Any:
    """Let V1's rejection sampler return log-probabilities without ids of its own, to which the ids are added."""
    ids = sampling.logprob_token_ids
    if not ids:
        return original(sampler, metadata, draft_probs, logits, sampling)
    sampling = replace(sampling, logprob_token_ids=None, max_num_logprobs=sampling.max_num_logprobs or 0)
    with _looking_up((len(metadata.num_draft_tokens), ids)):
        return original(sampler, metadata, draft_probs, logits, sampling)


def _gather_logprobs(original: Method, logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
    """Put the given ids of V1's requests in place of the most likely tokens.

    Args:
        original: vLLM's function.
        logprobs: [B * (N + 1), V] float32, the positions of a request one after the other.
        num_logprobs: how many of the most likely tokens are returned.
        token_ids: [B * (N + 1)] int64, the tokens that were emitted.
    """
    tensors = original(logprobs, num_logprobs, token_ids)
    wanted = _ids.get()
    if wanted is None:
        return tensors
    requests, by_row = wanted
    positions = len(token_ids) // requests
    max_ids = max(map(len, by_row.values()))
    wider = max(0, max_ids - num_logprobs)
    ids = torch.nn.functional.pad(tensors.logprob_token_ids, (0, wider))
    values = torch.nn.functional.pad(tensors.logprobs, (0, wider), value=-torch.inf)
    for row, own in by_row.items():
        place = slice(row * positions, (row + 1) * positions)
        columns = torch.tensor(own, device=ids.device)
        ids[place, 1 : len(own) + 1] = columns.to(ids.dtype)
        values[place, 1 : len(own) + 1] = logprobs[place].index_select(1, columns)
    return tensors._replace(logprob_token_ids=ids, logprobs=values)


def _call(original: Method, sampler: Any, logits: Tensor, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the largest number of ids of a request of the batch, which vLLM may verify in parts and then join."""
    sampler.specplug_max_ids = sampler.sampler.logprob_token_ids_state.max_num_token_ids(batch.idx_mapping_np)
    return original(sampler, logits, batch, *args, **kwargs)


def _verify(original: Method, sampler: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep which request each row of V2's logits belongs to, for the log-probabilities that vLLM computes next."""
    sampler.specplug_rows = args[7]  # expanded_idx_mapping
    return original(sampler, *args, **kwargs)


def _get_logprobs_tensors(original: Method, sampler: Any, *args: Any) -> Any:
    """Let V2's rejection sampler look up ids; its last argument is negative where no request wants likely tokens."""
    state = sampler.sampler.logprob_token_ids_state
    rows = sampler.specplug_rows
    max_ids = sampler.specplug_max_ids
    if not max_ids:
        return original(sampler, *args)
    with _looking_up(
        {"logprob_token_ids_state": state, "expanded_idx_mapping": rows, "max_per_req_token_ids": max_ids}
    ):
        return original(sampler, *args[:-1], max(0, args[-1]))


def _get_logprobs_dims(original: Method, sampler: Any, slots: Any, *_: Any, **__: Any) -> Any:
    """Count the ids in steps with drafts, too, where ranks join what each has sampled of a batch; vLLM does not."""
    return original(sampler, slots)


def _compute_topk_scores(original: Method, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs, **(_ids.get() or {}))
