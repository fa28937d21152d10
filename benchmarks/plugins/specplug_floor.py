"""The smallest speculative algorithm of SGLang, which drafts nothing: what SGLang itself spends on having one."""

from __future__ import annotations

from typing import Any

ALGORITHM = "FLOOR"


def register() -> None:
    """Register the algorithm; it runs only if a launch names it."""
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo, get_spec

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Relays what SGLang's n-gram does."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def need_topk(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def create_future_map(self, device: Any, pool: Any = None, *_: Any, **given: Any) -> Any:
            return FutureMap(device, self, given.get("req_to_token_pool", pool), needs_cpu_seq_lens=False)

        def handle_server_args(self, server_args: Any) -> None:
            server_args.speculative_eagle_topk = 1
            server_args.speculative_num_steps = server_args.speculative_num_draft_tokens - 1
            server_args.enable_mixed_chunk = False

    if get_spec(ALGORITHM) is None:
        SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=Algorithm)(lambda _: worker())


def worker() -> type:
    """Return the class of the worker."""
    import torch
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    class Worker(BaseSpecWorker):  # type: ignore[misc]
        """Lets the target decode one token per request."""

        adaptive_controller = None
        draft_worker = None

        def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
            super().__init__()
            self.server_args, self._target_worker = server_args, target_worker
            self.model_runner = target_worker.model_runner
            self.speculative_num_draft_tokens = server_args.speculative_num_draft_tokens

        @property
        def spec_v2_attn_backends(self) -> tuple[Any, ...]:
            return (self.model_runner.attn_backend,)

        def alloc_memory_pool(self, memory_pool_config: Any = None, **pools: Any) -> None:
            self.req_to_token_pool, self.token_to_kv_pool_allocator = self._target_worker.get_memory_pool()

        def init_cuda_graphs(self) -> None:
            """Capture nothing."""

        def clear_cache_pool(self) -> None:
            """Hold nothing."""

        @torch.inference_mode()
        def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
            if batch.forward_mode.is_decode():
                slots, before = batch.req_pool_indices, batch.seq_lens
                batch.input_ids = batch.spec_info.accept_tokens.long()
                batch.out_cache_loc = batch.req_to_token_pool.req_to_token[slots, before].long()
                batch.seq_lens, batch.seq_lens_sum, batch.spec_info = before + 1, None, None
                if batch.seq_lens_cpu is not None:
                    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            result = self.target_worker.forward_batch_generation(batch)
            if on_publish is not None:
                on_publish(batch.seq_lens)
            tokens, ones = result.next_token_ids.int(), torch.ones(len(batch.reqs), dtype=torch.int32)
            result.accept_lens, result.new_seq_lens = ones, batch.seq_lens
            result.next_draft_input = NgramVerifyInput(
                draft_token_num=1, new_seq_lens=batch.seq_lens, accept_tokens=tokens, accept_lens=ones
            )
            result.speculative_num_draft_tokens = result.speculative_output_stride = 1
            return result

    return Worker
