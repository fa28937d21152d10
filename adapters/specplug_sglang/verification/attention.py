"""Needs of SGLang's attention backends in verification: masks, and buffers of graphs.

A backend's own declaration decides, that of the wrapped backend for wrappers; class names decide only if a backend
declares nothing.  Nothing here waits for the device.

Backends allocate page tables, lists of cache positions, masks and partial results for the largest batch that they
capture, and every replay writes what it reads of them.  Steps follow one another on one stream, so those of one draft
length may overwrite the buffers of another, as those of one batch size overwrite the buffers of another.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor

from specplug.errors import EngineError
from specplug_sglang.verification.trees import Nodes, chain_sees, whole_mask

CAUSAL = frozenset(
    {
        *("CuteDslMLABackend", "DeepseekSparseAttnBackend", "FlashAttentionBackend", "FlashMLABackend"),
        *("MusaFlashAttentionBackend", "TRTLLMHAAttnBackend", "TRTLLMMLABackend", "TorchNativeAttnBackend"),
        "XPUAttentionBackend",
    }
)
"""Backends that verify chains causally without a mask; backends with captured graphs declare it (`verify_mask`)."""


UNABLE = ("TorchNativeAttnBackend",)
"""Backends whose forward pass has no case for verification."""


def check(attention: Any, *, trees: bool) -> None:
    """Refuse a backend that cannot verify drafts, and trees on one that reads no mask (`EngineError`).

    On the latter nodes would attend to other branches.
    """
    if not verifies_drafts(verifying(attention)):
        raise EngineError.build(
            "this attention backend cannot verify drafts",
            who="specplug_sglang",
            found=f"{type(verifying(attention)).__name__}, which SGLang also takes on CPUs without AMX",
            expected="a backend that verifies, as fa3, triton, flashinfer, or intel_amx",
            remedy="Set --attention-backend, or start without --speculative-algorithm",
        )
    if trees and _declared(attention) is False:
        raise EngineError.build(
            "this attention backend verifies chains only",
            who="specplug_sglang",
            found=f"{type(verifying(attention)).__name__}, --speculative-eagle-topk above 1",
            expected="a backend that reads tree masks",
            remedy="Set --speculative-eagle-topk 1, or --attention-backend fa3, triton or flashinfer",
        )


def verifies_drafts(attention: Any) -> bool:
    """Return whether a backend, without SGLang's wrappers, can attend in verification."""
    return type(attention).__name__ not in UNABLE


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
    """Return the mask of a step, whose nodes are n of each of B rows, for a backend that reads one.

    On a CPU it is [B * n * n] bool, which nodes see which; elsewhere as in `whole_mask`, possibly with unused cells at
    the end.  `max_length` is the longest text.
    """
    rows, n = nodes.tokens.shape
    device = nodes.tokens.device
    sees = chain_sees(rows, n, device) if nodes.sees is None else nodes.sees
    return sees.flatten() if device.type == "cpu" else whole_mask(sees, batch.seq_lens, max_cached(batch, max_length))


def max_cached(batch: Any, max_length: int) -> int:
    """Return the number of cached tokens of all rows, or an upper bound if only the device has the lengths."""
    if batch.seq_lens_cpu is not None:
        return int(batch.seq_lens_cpu.sum())
    return sum(min(req.kv.kv_allocated_len, max_length) for req in batch.reqs)


def _declared(attention: Any) -> bool | None:
    """Return whether a backend, or the one it wraps, declares to read masks; None if neither declares anything."""
    masks = (getattr(backend, "verify_mask", None) for backend in (attention, verifying(attention)))
    return next((bool(mask.is_read) for mask in masks if mask is not None), None)


SHARED = {
    "FlashAttentionBackend": (
        *("decode_cuda_graph_metadata", "draft_extend_metadata", "target_verify_metadata"),
        *("draft_decode_metadata_topk_normal", "target_verify_metadata_topk_normal"),
    ),
    "FlashInferAttnBackend": ("cuda_graph_custom_mask", "cuda_graph_kv_indices"),
    "TritonAttnBackend": (
        *("_verify_mask", "cuda_graph_attn_logits", "cuda_graph_attn_lse", "cuda_graph_swa_attn_logits"),
        *("cuda_graph_kv_indices", "cuda_graph_window_kv_indices"),
    ),
}
"""Attributes by class of backend.  Other classes share nothing, because what their replays rewrite was not read."""


class GraphBuffers:
    """The largest buffers so far, of which later backends get the first rows if those are enough."""

    def __init__(self) -> None:
        self._largest: dict[Hashable, Tensor] = {}

    def share(self, attention: Any) -> None:
        """Replace the buffers of a backend by existing ones, before graphs read them; keep those that are larger."""
        for backend in _leaves(attention):
            kind = type(backend).__name__
            for name in SHARED.get(kind, ()):
                if getattr(backend, name, None) is not None:
                    setattr(backend, name, self._shared((kind, name), getattr(backend, name)))

    def share_when_allocated(self, attention: Any) -> None:
        """Share the buffers of a backend that a graph runner is going to allocate."""
        allocate = attention.init_cuda_graph_state

        def allocate_and_share(*args: Any, **kwargs: Any) -> None:
            allocate(*args, **kwargs)
            self.share(attention)

        attention.init_cuda_graph_state = allocate_and_share

    def _shared(self, key: tuple[Hashable, ...], value: Any) -> Any:
        """Return `value` with shared tensors: a tensor, a list of them, a dict's page tables, or a mask's buffer."""
        if isinstance(value, Tensor):
            return self._rows(key, value)
        if isinstance(value, list):
            return [self._shared((*key, place), each) for place, each in enumerate(value)]
        if isinstance(value, dict):
            tables = {name: each for name, each in value.items() if "page_table" in str(name)}
            value.update({name: self._shared((*key, name), each) for name, each in tables.items()})
            return value
        buffer = self._rows(key, value.buffer)
        return type(value)(buffer=buffer, mode=value.mode, max_bs=value.max_bs, is_read=value.is_read)

    def _rows(self, key: Hashable, wanted: Tensor) -> Tensor:
        largest = self._largest.get(key)
        fits = largest is not None and largest.dtype == wanted.dtype and largest.shape[1:] == wanted.shape[1:]
        if largest is not None and fits and len(largest) >= len(wanted):
            return largest[: len(wanted)]
        self._largest[key] = wanted
        return wanted


def _leaves(attention: Any) -> Iterator[Any]:
    """Yield the backends that attend to a text's tokens, those in wrappers included."""
    names = ("full_attn_backend", "decode_backend", "prefill_backend")
    inner = [getattr(attention, name) for name in names if hasattr(getattr(attention, name, None), "verify_mask")]
    if not inner:
        yield attention
    for backend in inner:
        yield from _leaves(backend)
