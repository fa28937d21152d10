"""Buffers of captured graphs that draft lengths share, in bytes on the meta device; without SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug_sglang.verification.attention import GraphBuffers

REQUESTS, CONTEXT = 256, 131_072


def meta(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype, device="meta")


class Backend:
    """What SGLang's backends allocate for graphs of `most` requests with `nodes` each."""

    verify_mask = None

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes

    def init_cuda_graph_state(self, most: int, tokens: int) -> None:
        raise NotImplementedError


class FlashAttentionBackend(Backend):
    def init_cuda_graph_state(self, most: int, tokens: int) -> None:
        self.decode_cuda_graph_metadata = {"cache_seqlens": meta(most), "page_table": meta(most, CONTEXT)}
        self.target_verify_metadata = {"page_table": meta(most, CONTEXT), 1: object()}

    def buffers(self) -> list[Tensor]:
        return [self.decode_cuda_graph_metadata["page_table"], self.target_verify_metadata["page_table"]]


class Mask(NamedTuple):
    buffer: Tensor
    mode: str
    max_bs: int
    is_read: bool


class TritonAttnBackend(Backend):
    def init_cuda_graph_state(self, most: int, tokens: int) -> None:
        self.cuda_graph_attn_logits = meta(tokens, 32, 8, 128, dtype=torch.float32)
        self.cuda_graph_swa_attn_logits = None
        self._verify_mask = Mask(meta(tokens * CONTEXT, dtype=torch.uint8), "full", most, True)

    def buffers(self) -> list[Tensor]:
        return [self.cuda_graph_attn_logits, self._verify_mask.buffer]


def storage(buffer: Tensor) -> int:
    return buffer.untyped_storage()._cdata


def test_a_larger_buffer_takes_the_place_of_a_smaller_one_and_what_replays_do_not_rewrite_is_not_shared():
    shared, backends = GraphBuffers(), []
    for most in (8, 32, 16):
        backends.append(FlashAttentionBackend(1))
        backends[-1].init_cuda_graph_state(most, most)
        shared.share(backends[-1])
    first, second, third = (storage(backend.buffers()[0]) for backend in backends)
    assert first != second == third
    assert len({storage(backend.decode_cuda_graph_metadata["cache_seqlens"]) for backend in backends}) == 3


def test_another_shape_is_not_shared():
    shared, backends = GraphBuffers(), []
    for context in (CONTEXT, 7):
        backends.append(FlashAttentionBackend(1))
        backends[-1].decode_cuda_graph_metadata = {}
        backends[-1].target_verify_metadata = {"page_table": meta(4, context)}
        shared.share(backends[-1])
    assert [len(backend.target_verify_metadata["page_table"][0]) for backend in backends] == [CONTEXT, 7]


def test_backends_in_wrappers_share_and_others_do_not():
    class OtherBackend(TritonAttnBackend):
        """A subclass may keep what its replays do not rewrite."""

    def wrapped() -> tuple[Any, Any]:
        leaves = TritonAttnBackend(1), OtherBackend(1)
        for leaf in leaves:
            leaf.init_cuda_graph_state(4, 4)
        hybrid = SimpleNamespace(decode_backend=leaves[0], prefill_backend=leaves[1], verify_mask=None)
        shared.share(SimpleNamespace(full_attn_backend=hybrid))
        return leaves

    shared = GraphBuffers()
    one, other = wrapped(), wrapped()
    masks = [[storage(leaf.buffers()[1]) for leaf in leaves] for leaves in zip(one, other, strict=True)]
    assert [len(set(mask)) for mask in masks] == [1, 2]
