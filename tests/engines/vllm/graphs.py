"""vLLM's own choice of CUDA graphs, queried without a GPU: the sizes that it captures on Hopper, and its dispatcher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.config import vllm as config_module
from vllm.config.compilation import CompilationConfig, CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils

from specplug_vllm.config import METHOD, PROPOSER


def vllm_config(
    most: int, max_num_seqs: int, lengths: Any = None, *, v2: bool = True, data_parallel: int = 1, **others: Any
) -> Any:
    """Return what vLLM's methods about CUDA graphs read of a `VllmConfig`; `most` is num_speculative_tokens."""
    spec = SimpleNamespace(
        method=others.get("method", METHOD),
        model=PROPOSER,
        num_speculative_tokens=most,
        num_speculative_tokens_per_batch_size=lengths,
        enable_adaptive_verification=others.get("cuts", False),
        max_num_new_slots_for_drafting=0,
        uses_dynamic_speculative_decoding=lambda: spec.num_speculative_tokens_per_batch_size is not None,
    )
    parallel = {"tensor_parallel_size": 1, "data_parallel_size": data_parallel}
    found = object.__new__(Requested)
    vars(found).update(
        v2=v2,
        speculative_config=spec,
        diffusion_config=None,
        compilation_config=CompilationConfig(cudagraph_mode=others.get("mode", CUDAGraphMode.FULL_AND_PIECEWISE)),
        model_config=SimpleNamespace(
            enforce_eager=False, is_moe=others.get("experts", False), is_hybrid=False, is_attention_free=False
        ),
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=8192,
            max_num_scheduled_tokens=None,
            long_prefill_token_threshold=0,
            async_scheduling=True,
        ),
        reasoning_config=None,
        performance_mode="balanced",
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        parallel_config=SimpleNamespace(**parallel),
        additional_config=others.get("additional_config", {}),
    )
    return found


class Requested(config_module.VllmConfig):
    """vLLM's configuration with a runner that is stated."""

    v2: bool

    @property
    def use_v2_model_runner(self) -> bool:  # vLLM finds out from the environment
        return self.v2


def dispatcher(monkeypatch: Any, found: Any) -> Any:
    """Return vLLM's `CudaGraphManager` of a configuration, as if everything were captured."""
    first = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", lambda: first)
    monkeypatch.setattr(cudagraph_utils, "is_breakable_cudagraph_enabled", lambda: False)
    monkeypatch.setattr(cudagraph_utils, "current_platform", SimpleNamespace(get_global_graph_pool=lambda: None))
    most = found.num_speculative_tokens
    mode = found.compilation_config.cudagraph_mode
    manager = cudagraph_utils.CudaGraphManager(found, "cpu", mode, decode_query_len=most + 1)
    manager._graphs_captured = True
    return manager


def mode_of(manager: Any, lengths: list[int]) -> str:
    """Return which graph a decoding step runs as: FULL, PIECEWISE or NONE; `lengths` are its rows' draft tokens."""
    queries = [length + 1 for length in lengths]
    uniform = queries[0] if len(set(queries)) == 1 else None
    found = manager.dispatch(len(queries), sum(queries), uniform, 0, max_query_len=max(queries))
    return str(found.cg_mode)
