"""Room in SGLang's memory: for what proposers take later, and for the graphs of all draft lengths."""

from __future__ import annotations

from typing import Any

import pytest

FOUND, LEFT_OUT = 3 << 30, 5


def sized_by(engine: Any) -> int:
    """Return by how many bytes SGLang sizes its caches that finds `FOUND` of them, where `LEFT_OUT` are declared."""
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    from specplug_sglang.scheduler.worker import leave_room

    class Sized(Exception):
        pass

    def config_from_budget(self: Any, budget: int) -> None:
        raise Sized(budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KVCacheConfigurator, "_profile_available_bytes", lambda self, before: FOUND)
        patch.setattr(KVCacheConfigurator, "config_from_budget", config_from_budget)
        leave_room(lambda found: found - LEFT_OUT)
        with pytest.raises(Sized) as sized:
            object.__new__(KVCacheConfigurator)._resolve_memory_pool_config(1)
    return int(sized.value.args[0])


def test_declared_bytes_are_taken_off_what_the_caches_are_sized_by(baseline):
    assert baseline.call(sized_by) == FOUND - LEFT_OUT


FACTS = {
    **{"page_size": 1, "topk": 1, "max_context_len": 131072, "num_head": 32, "v_head_dim": 128, "max_kv_splits": 8},
    **{"lean_total_programs": 132, "lean_block_m": 16, "num_wrappers": 1, "device": "meta"},
}
ABSENT = "is_draft_runner skip_prefill use_mla use_sliding_window_kv_pool has_swa is_encoder_decoder swa_v_head_dim "
ABSENT += "_get_scheduler_metadata local_attn_builder sliding_window_size dllm_attention"
"""What backends know of a model, and what they would know of others."""


def allocated(engine: Any) -> dict[str, list[int]]:
    """Return, by backend, the bytes that graphs of one draft length take, and those that five lengths take."""
    import sgl_kernel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sgl_kernel, "merge_state_v2", None, raising=False)  # a kernel for GPUs, imported by name
        from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
        from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
        from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
    one, others = (9, 256), ((5, 256), (3, 256), (2, 256), (1, 256))
    return {
        kind.__name__: [bytes_of(kind, [one]), bytes_of(kind, [one, *others])]
        for kind in (FlashAttentionBackend, FlashInferAttnBackend, TritonAttnBackend)
    }


def bytes_of(kind: type[Any], lengths: list[tuple[int, int]]) -> int:
    """Return the bytes of the buffers of backends for so many nodes per request, and so many requests."""
    import torch
    from torch.overrides import TorchFunctionMode

    from specplug_sglang.verification.attention import GraphBuffers

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            return func(*args, **{**given, **({"device": "meta"} if "device" in given else {})})

    buffers, storages, backends = GraphBuffers(), {}, []
    for nodes, batch in lengths:
        backend = object.__new__(kind)
        facts = {**FACTS, **dict.fromkeys(ABSENT.split()), "speculative_num_draft_tokens": nodes}
        vars(backend).update(facts, num_draft_tokens=nodes, kv_indptr=[torch.zeros(batch + 1, dtype=torch.int32)])
        buffers.share_when_allocated(backend)
        with OnMeta():
            backend.init_cuda_graph_state(batch, batch * nodes)
        for value in vars(backend).values():
            parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            for part in (getattr(part, "buffer", part) for part in parts):
                if isinstance(part, torch.Tensor):
                    storages[part.untyped_storage()._cdata] = part.untyped_storage().nbytes()
        backends.append(backend)
    return sum(storages.values())


def test_draft_lengths_share_the_buffers_that_sglangs_backends_allocate_for_graphs(baseline):
    """Four more lengths for 256 requests of 131,072 tokens add less than a thirtieth to the bytes of the longest."""
    found = {name: all_of_them / one for name, (one, all_of_them) in baseline.call(allocated).items()}
    assert max(found.values()) < 1 + 1 / 30, found
