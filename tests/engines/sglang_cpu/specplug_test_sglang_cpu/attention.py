"""Attention of drafts in verification, which SGLang's backend in plain torch lacks.

It goes by no more than what backends on GPUs go by.  FlashAttention keeps two settings from when it is built: with
``speculative_eagle_topk`` up to 1 it takes drafts for chains and looks at no mask; and it verifies
``speculative_num_draft_tokens`` per request, however many there are.  Sliding windows are as long as elsewhere in that
backend: a token sees itself and as many tokens before it as `sliding_window_size` says.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

BACKEND = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"


def built(result: None, self: Any, *args: Any, **kwargs: Any) -> None:
    """Come after the backend's `__init__`."""
    from sglang.srt.runtime_context import get_spec

    self.specplug_test_draft_length = get_spec().speculative_num_draft_tokens
    self.specplug_test_topk = get_spec().speculative_eagle_topk
    self.needs_cpu_seq_lens = False  # what it reads lies on the device, as with FlashAttention


def forward_extend(
    original: Any,
    self: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Any,
    forward_batch: Any,
    save_kv_cache: bool = True,
) -> Tensor:
    """Stand around the backend's `forward_extend`; returns [tokens, heads * head size]."""
    if not forward_batch.forward_mode.is_target_verify():
        return original(self, q, k, v, layer, forward_batch, save_kv_cache)
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    pool, spec = self.token_to_kv_pool, forward_batch.spec_info
    if self.use_sliding_window_kv_pool:  # SGLang's own backend reads it by the wrong slots
        raise NotImplementedError("sliding windows without --disable-hybrid-swa-memory")
    if save_kv_cache:
        pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
    n, seq_lens = spec.draft_token_num, forward_batch.seq_lens.tolist()
    if n != self.specplug_test_draft_length:
        raise ValueError(
            f"this backend was built to verify {self.specplug_test_draft_length} tokens per request, not {n}"
        )
    masks = masks_of(spec.custom_mask, seq_lens, n, self.specplug_test_topk)
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        masks = [within(mask, layer.sliding_window_size) for mask in masks]
    table, rows = self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices.tolist()
    slots = [table[row, : before + n] for row, before in zip(rows, seq_lens, strict=True)]
    queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    return attend(queries, keys, values, slots, masks, layer.scaling).flatten(1)


def masks_of(custom_mask: Tensor, seq_lens: list[int], n: int, topk: int | None) -> list[Tensor]:
    """Return what each request's drafts see, per request [n, length before them + n] bool.

    Args:
        custom_mask: of trees, bool, in either of SGLang's forms: [bs * n * n], which drafts see which; or, as on GPUs,
            what this function returns, flat and one after the other.
        seq_lens: per request, the length before its drafts.
        n: nodes per tree.
        topk: up to 1, or None, `custom_mask` is not looked at.
    """
    sizes, squares = [n * (before + n) for before in seq_lens], len(seq_lens) * n * n
    if topk is None or topk <= 1:
        drafts = torch.ones(n, n, dtype=torch.bool).tril().expand(len(seq_lens), n, n)
    elif custom_mask.numel() == squares:
        drafts = custom_mask.view(-1, n, n).bool()
    elif custom_mask.numel() == sum(sizes):
        return [part.view(n, -1).bool() for part in custom_mask.split(sizes)]
    else:
        found = f"a tree mask of {custom_mask.numel()} elements"
        raise ValueError(f"{found} for {len(seq_lens)} trees of {n} nodes, which needs {squares} or {sum(sizes)}")
    return [
        torch.cat([torch.ones(n, before, dtype=torch.bool), own], dim=1)
        for before, own in zip(seq_lens, drafts, strict=True)
    ]


def within(mask: Tensor, window: int) -> Tensor:
    """Return a mask [n, length before the drafts + n] without tokens more than `window` positions before a draft.

    A draft's place in its text is the number of tokens above it, whatever its place among the nodes.
    """
    n, length = mask.shape
    drafts = mask.sum(1) - 1
    places = torch.cat([torch.arange(length - n), drafts])
    return mask & (places[None] >= drafts[:, None] - window)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, slots: list[Tensor], masks: list[Tensor], scale: float | None
) -> Tensor:
    """Attend as the masks say.

    Args:
        queries: [bs * n, heads, head size].
        keys, values: [slots of the cache, KV heads, head size]; heads is a multiple of KV heads.
        slots: per request [length before the drafts + n] int32, where its keys and values lie.
        masks: per request [n, length before the drafts + n] bool, what each draft sees.

    Returns:
        [bs * n, heads, head size of the values].
    """
    out = []
    for own, where, mask in zip(queries.split(masks[0].shape[0]), slots, masks, strict=True):
        seen = scaled_dot_product_attention(
            own.movedim(0, 1)[None],
            keys[where.long()].movedim(0, 1)[None].to(own.dtype),
            values[where.long()].movedim(0, 1)[None].to(own.dtype),
            attn_mask=mask,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )
        out.append(seen[0].movedim(0, 1))
    return torch.cat(out)
