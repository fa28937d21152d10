"""The verifier that replaces the engine's rejection sampling in workers of servers whose settings name one.

Both of vLLM's rejection samplers process the logits, call a function, `rejection_sample`, that accepts or rejects, and
report the result.  Only that function is replaced, and only for runners with a verifier: the engine still applies
penalties, bias, grammar masks, temperature, top-k, top-p and min-p to the logits, and reports logprobs and counts.
"""

from __future__ import annotations

import functools
import hashlib
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
from specplug.types.step import Draft
from specplug.types.verification import SamplingBatch, TargetLogits, Verification
from specplug.verify.random import uniforms
from specplug_vllm.config import plugin_context, resolved

MOST_DISTRIBUTION_BYTES = 1 << 28
"""Most bytes that the float64 distributions of rows verified in one call may take."""

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
        together = MOST_DISTRIBUTION_BYTES // ((draft.draft_length + 1) * target.logits.shape[-1] * 8)
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
    found = resolved(vllm_config)
    if found is None or not found.was_set("verifier"):
        return None
    spec = default_registry().get(VerifierSpec, found.settings.verifier)
    refuse_unsupported(vllm_config, spec)
    context = plugin_context(vllm_config, found.settings.seed, device=device)
    plugin = build_verifier(found.settings, default_registry(), context)
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
    """Hook a module's `rejection_sample`.  The engine's own runs outside `decided_by` methods."""
    hook(module, "rejection_sample", _rejection_sample)


def _rejection_sample(original: Decide, *args: Any, **kwargs: Any) -> Any:
    decide = _deciding.get()
    return original(*args, **kwargs) if decide is None else decide(original, *args, **kwargs)


def decided_by(decide: Decide, method: Callable[..., Any]) -> Callable[..., Any]:
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
