"""Needs of SGLang's attention backends in verification: masks, and text lengths on the host.

A backend's own declaration decides, that of the wrapped backend for wrappers; class names decide only if a backend
declares nothing.  Nothing here waits for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from specplug.errors import EngineError
from specplug_sglang.verification.trees import Nodes, chain_sees, whole_mask

CAUSAL = frozenset(
    {
        "CuteDslMLABackend",
        "DeepseekSparseAttnBackend",
        "FlashAttentionBackend",
        "FlashMLABackend",
        "MusaFlashAttentionBackend",
        "TRTLLMHAAttnBackend",
        "TRTLLMMLABackend",
        "TorchNativeAttnBackend",
        "XPUAttentionBackend",
    }
)
"""Backends that verify chains causally without a mask; backends with captured graphs declare it (`verify_mask`)."""


def needs_host_lengths(backends: Iterable[Any]) -> bool:
    """Return whether any backend reads text lengths on the host, which makes every step wait for the previous one."""
    return any(getattr(backend, "needs_cpu_seq_lens", True) for backend in backends)


def check(attention: Any, *, trees: bool) -> None:
    """Refuse trees on a backend that declares to read no mask: nodes would attend to other branches.

    Raises:
        EngineError: the server verifies trees on such a backend.
    """
    if trees and _declared(attention) is False:
        raise EngineError.build(
            "this attention backend verifies chains only",
            who="specplug_sglang",
            found=f"{type(verifying(attention)).__name__}, --speculative-eagle-topk above 1",
            expected="a backend that reads tree masks",
            remedy="Set --speculative-eagle-topk 1, or --attention-backend fa3, triton or flashinfer",
        )


@functools.cache
def reads_mask(attention: Any, *, trees: bool) -> bool:
    """Return whether a backend reads a mask when it verifies; `trees`: whether it was built for trees."""
    declared = _declared(attention)
    return declared if declared is not None else trees or type(verifying(attention)).__name__ not in CAUSAL


def verifying(attention: Any) -> Any:
    """Unwrap SGLang's wrappers and return the backend that attends to the tokens being verified."""
    if hasattr(attention, "decode_backend"):
        return verifying(attention.decode_backend if attention.spec_attn_is_decode else attention.prefill_backend)
    inner = getattr(attention, "full_attn_backend", None)
    return attention if inner is None else verifying(inner)


def mask_of(batch: Any, nodes: Nodes, max_length: int) -> Tensor:
    """Return the mask of a step for a backend that reads one.

    Args:
        batch: a decoding `ScheduleBatch`.
        nodes: nodes of B rows to verify, n each.
        max_length: the longest text.

    Returns:
        On a CPU [B * n * n] bool, which nodes see which; elsewhere as in `whole_mask`, possibly with unused cells at
        the end.
    """
    rows, n = nodes.tokens.shape
    device = nodes.tokens.device
    sees = chain_sees(rows, n, device) if nodes.sees is None else nodes.sees
    return sees.flatten() if device.type == "cpu" else whole_mask(sees, batch.seq_lens, most_cached(batch, max_length))


def most_cached(batch: Any, max_length: int) -> int:
    """Return the number of cached tokens of all rows, or an upper bound if only the device has the lengths."""
    if batch.seq_lens_cpu is not None:
        return int(batch.seq_lens_cpu.sum())
    return sum(min(req.kv.kv_allocated_len, max_length) for req in batch.reqs)


def _declared(attention: Any) -> bool | None:
    """Return whether a backend, or the one it wraps, declares to read masks; None if neither declares anything."""
    masks = (getattr(backend, "verify_mask", None) for backend in (attention, verifying(attention)))
    return next((bool(mask.is_read) for mask in masks if mask is not None), None)
