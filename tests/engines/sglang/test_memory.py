"""Room in SGLang's memory for what proposers take later, where SGLang measures what its caches may take."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.engines.launch import TORCHVISION
from tests.engines.sglang.launch import SGLANG_CPU

FOUND, LEFT_OUT = 3 << 30, 5
STAND_INS = os.pathsep.join(map(str, [SGLANG_CPU, TORCHVISION]))

SIZING = f"""
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from specplug_sglang.scheduler.worker import leave_room

class Sized(Exception):
    pass

def config_from_budget(self, budget):
    raise Sized(budget)

KVCacheConfigurator._profile_available_bytes = lambda self, before: {FOUND}
KVCacheConfigurator.config_from_budget = config_from_budget
leave_room(lambda found: found - {LEFT_OUT})
try:
    object.__new__(KVCacheConfigurator)._resolve_memory_pool_config(1)
except Sized as sized:
    print("sized by", *sized.args)
"""


def test_declared_bytes_are_taken_off_what_the_caches_are_sized_by():
    """The engine's own function requests them, in a process with SGLang's stand-ins."""
    environment = {**os.environ, "PYTHONPATH": STAND_INS}
    done = subprocess.run(
        [sys.executable, "-c", SIZING], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert f"sized by {FOUND - LEFT_OUT}" in done.stdout, done.stderr


SHARING = """
import sgl_kernel

sgl_kernel.merge_state_v2 = None  # a kernel for GPUs, imported by name
import torch
from torch.overrides import TorchFunctionMode
from sglang.srt.layers.attention.flashattention_backend import FlashAttentionBackend
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from specplug_sglang.verification.attention import SHARED, GraphBuffers

FACTS = {
    **{"page_size": 1, "topk": 1, "max_context_len": 131072, "num_head": 32, "v_head_dim": 128, "max_kv_splits": 8},
    **{"lean_total_programs": 132, "lean_block_m": 16, "num_wrappers": 1, "device": "meta"},
}
ABSENT = "is_draft_runner skip_prefill use_mla use_sliding_window_kv_pool has_swa is_encoder_decoder swa_v_head_dim "
ABSENT += "_get_scheduler_metadata local_attn_builder sliding_window_size dllm_attention"

class OnMeta(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if "device" in (kwargs or {}) else {})})

def allocated(kind, lengths):
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

for kind in (FlashAttentionBackend, FlashInferAttnBackend, TritonAttnBackend):
    assert kind.__name__ in SHARED
    one, others = (9, 256), ((5, 256), (3, 256), (2, 256), (1, 256))
    print(kind.__name__, allocated(kind, [one]), allocated(kind, [one, *others]))
"""


def test_draft_lengths_share_the_buffers_that_sglangs_backends_allocate_for_graphs():
    """Four more lengths for 256 requests of 131,072 tokens add less than a thirtieth to the bytes of the longest."""
    environment = {**os.environ, "PYTHONPATH": STAND_INS}
    done = subprocess.run(
        [sys.executable, "-c", SHARING], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    found = {name: int(all_of_them) / int(one) for name, one, all_of_them in map(str.split, done.stdout.splitlines())}
    assert found.keys() == {"FlashAttentionBackend", "FlashInferAttnBackend", "TritonAttnBackend"}, done.stderr
    assert max(found.values()) < 1 + 1 / 30, found
