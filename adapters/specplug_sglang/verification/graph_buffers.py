"""Buffers that captured graphs read, shared by the attention backends of all draft lengths.

SGLang's backends allocate page tables, lists of cache positions, masks and partial results for the largest batch that
they capture, and every replay writes what it reads of them.  Steps follow one another on one stream, so those of one
draft length may overwrite the buffers of another, as those of one batch size overwrite the buffers of another.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor

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
