"""Timed steps of the target before the first request, from which planners learn what verifying drafts costs.

The rows decode texts of random tokens in rows of the request pool and places of the cache that no request has yet.  No
scheduler, prefix cache or proposer knows of them, and they take no random numbers of the engine's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from specplug.cost.measuring import StepSize
from specplug.types.step import Draft, StepCost
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.drafts import module_of

if TYPE_CHECKING:
    from specplug_sglang.scheduler.worker import SpeculativeWorker

CONTEXT = 256
"""Cached tokens of each row, if there is room for them."""

QUEUED = 4
"""Steps that a timed run queues on a GPU before it waits, as overlapped steps wait for the device alone."""


class TimedSteps:
    """Runs steps of a worker whose memory is allocated and whose graphs are captured.

    Args:
        worker: the worker; it must not have served a request.

    Attributes:
        most_requests: rows of the largest batch.
    """

    def __init__(self, worker: SpeculativeWorker) -> None:
        self._worker = worker
        self._device = worker.device
        self._pool = worker.req_to_token_pool.req_to_token  # [S, L] int32
        self.most_requests = self._pool.shape[0] - 1
        self._page = int(worker.token_to_kv_pool_allocator.page_size)
        self._pages = int(worker.token_to_kv_pool_allocator.size) // self._page
        self._random = torch.Generator().manual_seed(0)
        self._module = module_of(self._device)

    @staticmethod
    def applies(worker: SpeculativeWorker) -> bool:
        """Return whether rows need no more than places in one cache of keys and values, which nothing maps or moves."""
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

        allocators = (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator)
        plain = (
            type(worker.token_to_kv_pool_allocator) in allocators and type(worker.req_to_token_pool) is ReqToTokenPool
        )
        return plain and worker.decodes_plainly

    @torch.inference_mode()
    def run(self, size: StepSize, count: int) -> list[StepCost]:
        """Run so many steps of a size, all rows of which have as many draft tokens, one after the other.

        Returns:
            their costs, with rank 0's seconds on all ranks; none if the cache has no room or no plan would have them.
        """
        worker = self._worker
        rows = size.requests
        length = size.draft_tokens // rows
        context = min(CONTEXT, self._most_context(rows, length))
        if context < 1 or length > worker.drafting.step_planner.stage.longest_draft(rows):
            return []
        batch = self._batch(rows, length, context)
        draft = self._draft(rows, length)
        step = Decoding(batch.reqs, worker.drafting.rows, batch.req_pool_indices, batch.seq_lens, False)
        try:
            seconds = [self._seconds(lambda: worker.run_target(copy(batch), step, draft)) for _ in range(count)]
        finally:
            self._pool[1 : rows + 1].zero_()
        return [StepCost(rows, size.tokens, rows * context, length, each) for each in seconds]

    def _seconds(self, step: Callable[[], object]) -> float:
        """Return rank 0's seconds for a step, from its launch to its end."""
        steps = 1 if self._module is None else QUEUED
        self._wait()
        began = perf_counter()
        for _ in range(steps):
            step()
        self._wait()
        return self._worker.ranks.agree(round((perf_counter() - began) / steps * 1e9)) / 1e9

    def _most_context(self, requests: int, draft_length: int) -> int:
        """Return the most context tokens of each row for which the cache has room; below 1 if there is none."""
        places = self._pages // requests * self._page
        return min(places, self._worker.drafting.max_length) - draft_length - 2

    def _wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()

    def _draft(self, requests: int, draft_length: int) -> Draft | None:
        """Return chains of random tokens, None for no tokens."""
        if not draft_length:
            return None
        trees = self._worker.drafting.drafts_trees
        draft = Draft.allocate(requests, draft_length, device=self._device, trees=trees)
        draft.token_ids.copy_(self._tokens(requests, draft_length))
        draft.lengths.fill_(draft_length)
        return draft

    def _batch(self, requests: int, draft_length: int, context: int) -> Any:
        """Return SGLang's batch of rows 1 to B of the pool, whose texts have `context` cached tokens and one more."""
        from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
        from sglang.srt.sampling.sampling_params import SamplingParams

        worker = self._worker
        config = worker.model_runner.model_config
        device = self._device
        greedy = SamplingParams(temperature=0.0)
        greedy.normalize(None)
        reqs = [
            Req(f"timed {row}", "", array("q", [0]), greedy, vocab_size=config.vocab_size) for row in range(requests)
        ]
        batch = ScheduleBatch.init_new(
            reqs,
            worker.req_to_token_pool,
            worker.token_to_kv_pool_allocator,
            None,
            config,
            False,
            worker.model_runner.spec_algorithm,
        )
        slots = torch.arange(1, requests + 1)  # row 0 is padding
        self._place(slots.to(device), context + draft_length + 1)
        worker.drafting.table.tokens[slots.to(device), context] = self._tokens(requests)
        lengths = torch.full((requests,), context)
        batch.forward_mode = ForwardMode.DECODE
        batch.req_pool_indices = slots.to(device)
        batch.req_pool_indices_cpu = slots
        batch.seq_lens = lengths.to(device)
        batch.seq_lens_cpu = lengths
        batch.orig_seq_lens = lengths.to(device, torch.int32)
        batch.seq_lens_sum = requests * context
        batch.sampling_info = SamplingBatchInfo.from_schedule_batch(batch, config.vocab_size)
        return batch

    def _place(self, slots: torch.Tensor, length: int) -> None:
        """Give rows `slots` [B] of the pool places for `length` tokens each, in pages of their own, from page 1 on."""
        pages = -(-length // self._page)
        first = self._page * (1 + pages * torch.arange(len(slots), device=self._device))
        places = first[:, None] + torch.arange(length, device=self._device)
        self._pool[slots, :length] = places.to(self._pool.dtype)

    def _tokens(self, *shape: int) -> torch.Tensor:
        """Return random token ids: equal ones would meet the same experts of a mixture."""
        vocab_size = self._worker.drafting.vocab_size
        return torch.randint(vocab_size, shape, generator=self._random, dtype=torch.int32).to(self._device)
