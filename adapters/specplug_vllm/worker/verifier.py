"""The verifier that replaces the engine's rejection sampling in workers of servers whose settings name one.

Both of vLLM's rejection samplers process the logits, call a function, `rejection_sample`, that accepts or rejects, and
report the result.  Only that function is replaced, and only for runners with a verifier: the engine still applies
penalties, bias, grammar masks, temperature, top-k, top-p and min-p to the logits, and reports logprobs and counts.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from specplug.assembly import build_verifier
from specplug.errors import EngineError
from specplug.interfaces import Verifier
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import VerifierSpec
from specplug.seams.seam import hook
from specplug.types.caps import Distribution
from specplug.types.request import RequestOptions
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Verification
from specplug.verify.random import uniforms
from specplug_vllm import seams
from specplug_vllm.config import plugin_context, require_settings
from specplug_vllm.worker.drafting import Drafting

MAX_DISTRIBUTION_BYTES = 1 << 28
"""Maximum bytes that the float64 distributions of rows verified in one call may take."""

Decide = Callable[..., Any]
"""Replacement of `rejection_sample`: called with the engine's function and its arguments, returns the same type."""

_deciding: ContextVar[Decide | None] = ContextVar("specplug_deciding", default=None)


class ServerVerifier:
    """The verifier that a server's settings name, and its random numbers.

    Args:
        engine_seed: the engine's seed, which all its ranks share.

    Attributes:
        plugin: the verifier.
        lossless: a lossless verifier serves every request, a lossy one only the requests that enable it.
    """

    def __init__(self, plugin: Verifier, lossless: bool, engine_seed: int) -> None:
        self.plugin = plugin
        self.lossless = lossless
        # A separate stream: the engine and the plug-ins seed theirs with the configured seeds directly.
        digest = hashlib.blake2b(f"specplug verifier {engine_seed}".encode(), digest_size=8).digest()
        self._entropy = torch.Generator().manual_seed(int.from_bytes(digest, "little", signed=True))

    def seeds(self, count: int) -> Tensor:
        """Return new seeds at every call, [count] int64 on the CPU, the same on every rank."""
        return torch.randint(-(1 << 63), (1 << 63) - 1, (count,), dtype=torch.int64, generator=self._entropy)

    def verify(self, draft: Draft, target: TargetLogits, sampling: SamplingBatch, seeds: Tensor) -> Verification:
        """Verify with the random numbers of `seeds` [B] int64 at the rows' positions, `draft.base_len`."""
        numbers = uniforms(seeds, draft.base_len.long(), draft.draft_length)
        together = MAX_DISTRIBUTION_BYTES // ((draft.draft_length + 1) * target.logits.shape[-1] * 8)
        if (sampling.all_greedy and self.lossless) or draft.batch_size <= together:
            return self.plugin.verify(draft, target, sampling, numbers)
        parts = []
        for start in range(0, draft.batch_size, max(1, together)):
            rows = slice(start, start + max(1, together))
            parts.append(
                self.plugin.verify(
                    _rows_of(draft, rows),
                    TargetLogits(target.logits, target.starts[rows]),
                    _rows_of(sampling, rows),
                    type(numbers)(numbers.accept[rows], numbers.draw[rows]),
                )
            )
        departed = [part.departed for part in parts if part.departed is not None]
        return Verification(
            torch.cat([part.token_ids for part in parts]),
            torch.cat([part.num_accepted for part in parts]),
            torch.cat(departed) if departed else None,
        )


def build(vllm_config: Any, device: torch.device) -> ServerVerifier | None:
    """Build the verifier that a server's settings name; None leaves verification to the engine.

    Raises:
        EngineError: the verifier does not support this server.
        PluginError: the verifier fails to start.
    """
    server = require_settings(vllm_config)
    if not server.was_set("verifier"):
        return None
    spec = default_registry().get(VerifierSpec, server.settings.verifier)
    refuse_unsupported(vllm_config, spec)
    context = plugin_context(vllm_config, server.settings.seed, device=device)
    plugin = build_verifier(server.settings, default_registry(), context)
    return ServerVerifier(plugin, spec.caps.lossless, vllm_config.model_config.seed or 0)


def refuse_unsupported(vllm_config: Any, spec: VerifierSpec) -> None:
    """Refuse configurations under which the verifier would give wrong results.

    Raises:
        EngineError: the verifier does not support this server's configuration.
    """
    method = vllm_config.speculative_config.rejection_sample_method
    if method != "standard":
        raise EngineError.build(
            "two verifiers are named",
            who="specplug_vllm",
            found=f"verifier {spec.name!r} and vLLM's rejection_sample_method {method!r}",
            expected="one of them",
        )
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if not spec.caps.lossless and ranks > 1:
        raise EngineError.build(
            "a lossy verifier serves only requests that enable it, and only rank 0 knows which do",
            who=f"verifier {spec.name!r}",
            found=f"tensor_parallel_size {ranks}",
            expected="1",
        )


def replace_in(module: Any) -> None:
    """Hook a module's `rejection_sample`.  The engine's own runs outside `wrap_method` methods."""
    hook(module, "rejection_sample", _rejection_sample)


def _rejection_sample(original: Decide, *args: Any, **kwargs: Any) -> Any:
    decide = _deciding.get()
    return original(*args, **kwargs) if decide is None else decide(original, *args, **kwargs)


def wrap_method(decide: Decide, method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a rejection sampler so that `decide` replaces `rejection_sample` while it runs."""

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        token = _deciding.set(decide)
        try:
            return method(*args, **kwargs)
        finally:
            _deciding.reset(token)

    return wrapped


def chain(token_ids: Tensor, base_len: Tensor) -> Draft:
    """Return the one-hot draft of `token_ids` [B, N] after contexts of `base_len` [B] tokens.

    A row ends before its first negative id.  Confidences are 0 and sources -1: the engine does not carry them.
    """
    inside = (token_ids >= 0).to(torch.int32).cumprod(1)
    return Draft(
        token_ids=torch.where(inside > 0, token_ids, -1).to(torch.int32),
        lengths=inside.sum(1, dtype=torch.int32),
        confidence=torch.zeros(token_ids.shape, device=token_ids.device),
        source=torch.full(token_ids.shape, -1, dtype=torch.int32, device=token_ids.device),
        base_len=base_len.to(torch.int32),
    )


def _rows_of(record: Any, rows: slice) -> Any:
    """Return a record whose tensors are all by row, [B, ...], with some of its rows."""
    tensors = {each.name: getattr(record, each.name) for each in fields(record)}
    return replace(record, **{name: value[rows] for name, value in tensors.items() if isinstance(value, Tensor)})


# -- on the V1 runner ----------------------------------------------------------------------------------------------


def install_on_v1(runner: Any, verifier: ServerVerifier, drafting: Drafting | None) -> None:
    """Replace a runner's verification by `verifier`.  Lossy verifiers read requests' options from `drafting`."""
    import vllm.v1.sample.rejection_sampler as module

    seams.require("verifier v1")
    replace_in(module)
    sampler = runner.rejection_sampler
    sampler.forward = wrap_method(V1Decision(runner, verifier, drafting), sampler.forward)


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
        draft = _padded(token_ids, ends, draft_length, draft_probs, bases)
        seeds = self._seeds(len(counts), metadata.generators).to(target_logits.device)
        target = _target(target_logits, ends, bonus_token_ids)
        sampling = _sampling(metadata, bases)
        if chosen is None:
            return self._verifier.verify(draft, target, sampling, seeds).token_ids
        rows = torch.tensor([options is not None for options in chosen]).to(seeds.device)
        stated = [None if options is None else options.acceptance_threshold for options in chosen]
        thresholds = torch.tensor([math.nan if threshold is None else threshold for threshold in stated])
        sampling = replace(sampling, acceptance_threshold=thresholds.to(seeds.device))
        verification = self._verifier.verify(draft, target, sampling, seeds)
        if verification.departed is not None:
            assert self._drafting is not None
            self._drafting.stage.metrics.lossy.add(verification.num_accepted * rows, verification.departed * rows)
        return torch.where(rows[:, None], verification.token_ids, original(*args, **kwargs))

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


def _padded(token_ids: Tensor, ends: Tensor, draft_length: int, draft_probs: Tensor | None, bases: Tensor) -> Draft:
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
