"""The verifier hook of vLLM's V1 runner, in the worker process."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specplug.types.caps import Distribution
from specplug.types.request import RequestOptions
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits
from specplug_vllm import seams
from specplug_vllm.worker.drafting import Drafting
from specplug_vllm.worker.verifier import ServerVerifier, chain, decided_by, replace_in


def install(runner: Any, verifier: ServerVerifier, drafting: Drafting | None) -> None:
    """Replace a runner's verification by `verifier`.  Lossy verifiers read requests' options from `drafting`."""
    import vllm.v1.sample.rejection_sampler as module

    seams.require("verifier v1")
    replace_in(module)
    sampler = runner.rejection_sampler
    sampler.forward = decided_by(V1Decision(runner, verifier, drafting), sampler.forward)


class V1Decision:
    """Replacement of `rejection_sample`.

    The engine has already drawn each row's bonus token from the distribution at its position.  The verifier gets the
    one-hot distribution of that token.
    """

    def __init__(self, runner: Any, verifier: ServerVerifier, drafting: Drafting | None) -> None:
        self._runner = runner
        self._verifier = verifier
        self._drafting = drafting

    def __call__(self, original: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the emitted tokens of B requests with T draft tokens, [B, N + 1] int32, padded with -1.

        The positional arguments are those of vLLM's function: draft_token_ids [T] int32; num_draft_tokens, a list by
        row; max_spec_len, N; cu_num_draft_tokens [B] int32, its sums; draft_probs [T, V] float32, or None for one-hot
        drafts; target_logits [T, V] float32, processed, temperature included; bonus_token_ids [B, 1];
        sampling_metadata.
        """
        token_ids, counts, draft_length, ends, draft_probs, target_logits, bonus_token_ids, metadata = args[:8]
        batch = self._runner.input_batch
        if len(counts) != batch.num_reqs or not len(token_ids):  # a warm-up
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        chosen = None if self._verifier.lossless else self._chosen(batch.req_ids, counts)
        if chosen is not None and not any(options is not None for options in chosen):
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        bases = torch.from_numpy(batch.num_tokens_no_spec[: batch.num_reqs]).to(target_logits.device)
        draft = _draft(token_ids, ends, draft_length, draft_probs, bases)
        seeds = self._seeds(len(counts), metadata.generators).to(target_logits.device)
        target = _target(target_logits, ends, bonus_token_ids)
        sampling = _sampling(metadata, bases)
        if chosen is None:
            return self._verifier.verify(draft, target, sampling, seeds).token_ids
        rows = torch.tensor([options is not None for options in chosen]).to(seeds.device)
        given = [None if options is None else options.acceptance_threshold for options in chosen]
        thresholds = torch.tensor([math.nan if threshold is None else threshold for threshold in given])
        sampling = replace(sampling, acceptance_threshold=thresholds.to(seeds.device))
        found = self._verifier.verify(draft, target, sampling, seeds)
        if found.departed is not None:
            assert self._drafting is not None
            self._drafting.stage.metrics.lossy.add(found.num_accepted * rows, found.departed * rows)
        return torch.where(rows[:, None], found.token_ids, original(*args, **kwargs))

    def _chosen(self, names: list[str], counts: list[int]) -> list[RequestOptions | None]:
        """Return the options of rows that have drafts and a request that enables the verifier, None for the others."""
        assert self._drafting is not None  # lossy verifiers do not serve on several ranks
        allocator = self._drafting.allocator

        def of(name: str) -> RequestOptions | None:
            options = allocator.request_of(name).options if name in allocator else None
            return None if options is None or options.verifier is None else options

        return [of(name) if count else None for name, count in zip(names, counts, strict=False)]

    def _seeds(self, count: int, generators: dict[int, torch.Generator]) -> Tensor:
        """Return [count] int64: the request's seed for rows in `generators`, and new seeds for the others."""
        seeds = self._verifier.seeds(count)
        for row, generator in generators.items():
            seeds[row] = ctypes.c_int64(generator.initial_seed()).value  # its lowest 64 bits
        return seeds


def _draft(token_ids: Tensor, ends: Tensor, draft_length: int, draft_probs: Tensor | None, bases: Tensor) -> Draft:
    """Return the flat draft tokens as a padded draft."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    positions = torch.arange(draft_length, device=token_ids.device)
    index = ((ends - counts)[:, None] + positions).clamp(max=len(token_ids) - 1)
    draft = chain(torch.where(positions < counts[:, None], token_ids[index], -1), bases)
    if draft_probs is None:
        return draft
    return replace(draft, distribution=Distribution.PROBS, draft_probs=draft_probs[index])


def _target(logits: Tensor, ends: Tensor, bonus_token_ids: Tensor) -> TargetLogits:
    """Append to each row's draft positions the one-hot logits of its bonus token."""
    total = len(logits)
    rows = len(ends)
    flat = torch.arange(total, device=logits.device)
    full = logits.new_full((total + rows, logits.shape[1]), -torch.inf)
    full[flat + torch.searchsorted(ends, flat.to(ends.dtype), right=True)] = logits
    index = torch.arange(rows, device=logits.device)
    full[ends.long() + index, bonus_token_ids[:, 0].long()] = 0.0
    return TargetLogits(full, torch.cat([ends.new_zeros(1), ends[:-1]]).long() + index)


def _sampling(metadata: Any, rows: Tensor) -> SamplingBatch:
    """Return temperature 0 for greedy rows and 1 for the others, whose logits are already processed."""
    if metadata.all_greedy:
        return SamplingBatch(torch.zeros(rows.shape, device=rows.device), all_greedy=True)
    return SamplingBatch((metadata.temperature != 0).float())
