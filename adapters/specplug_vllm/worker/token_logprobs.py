"""Log-probabilities of given token ids (`logprob_token_ids`) at every position of a draft.

vLLM's rejection samplers leave the ids out: V1's returns nothing for them, and fails where another request asks for
log-probabilities; V2's returns the most likely tokens instead.  They get them here as vLLM's plain samplers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug_vllm import seams
from specplug_vllm.config import Runner

Method = Callable[..., Any]

_ids: ContextVar[Any] = ContextVar("specplug_logprob_token_ids", default=None)
"""What the rejection sampler that runs has to look up: on V1 (number of requests, ids by row), on V2 arguments."""


def install(runner: Runner) -> None:
    """Hook the rejection sampler of a runner, once per process."""
    if runner == "v1":
        seams.require("token logprobs v1")
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler

        hook(RejectionSampler, "forward", _forward)
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


def _forward(original: Method, sampler: Any, metadata: Any, draft_probs: Any, logits: Tensor, sampling: Any) -> Any:
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
