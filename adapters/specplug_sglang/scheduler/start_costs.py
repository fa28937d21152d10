"""What steps of a worker cost, as it is known before its first request: timed, or kept from an earlier start.

Rank 0 finds or measures the costs, and all ranks run the same steps: it gives the time, and decides whether anything
is to be timed and for how long.  Planners of other ranks learn nothing, as rank 0 decides.

Timed rows decode texts of random tokens in rows of the request pool and places of the cache that no request has yet.
No scheduler, prefix cache or proposer knows of them, and they take no random numbers of the engine's.
"""

from __future__ import annotations

import logging
import os
import socket
from array import array
from collections.abc import Callable
from copy import copy
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from specplug.cost.measuring import Measurement, StepLimits, StepSize, measure, step_sizes
from specplug.cost.store import StartCosts, costs_at_start
from specplug.types.step import Draft, StepCost
from specplug_sglang import seams
from specplug_sglang.config import resolved_args
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.drafting import module_of

if TYPE_CHECKING:
    from specplug_sglang.scheduler.ranks import RankGroup
    from specplug_sglang.scheduler.worker import SpeculativeWorker

logger = logging.getLogger("specplug")

T = TypeVar("T")

CONTEXT = 256
"""Cached tokens of each timed row, if there is room for them."""

QUEUED = 4
"""Steps that a timed run queues on a GPU before it waits, as overlapped steps wait for the device alone."""

ARGUMENTS = (
    *("model_path", "revision", "dtype", "quantization", "kv_cache_dtype", "page_size", "context_length"),
    *("attention_backend", "decode_attention_backend", "prefill_attention_backend", "moe_runner_backend"),
    *("disable_cuda_graph", "enable_torch_compile", "tp_size", "ep_size", "speculative_eagle_topk"),
)
"""Arguments of a server that change what its steps cost."""


def find(worker: SpeculativeWorker) -> None:
    """Let the planner of a worker, which is ready to serve, know what its steps cost, if it reads costs."""
    drafting = worker.drafting
    settings = drafting.resolved.settings.costs
    wanted = settings.measure and drafting.step_planner.reads_costs and seams.available("timing")
    seconds = worker.ranks.agree(max(1, round(settings.seconds * 1e3)) if wanted else 0) / 1e3
    if not (seconds and TimedSteps.applies(worker)):
        return
    steps = TimedSteps(worker)
    longest = drafting.caps.max_draft_length
    lengths = drafting.caps.captured_draft_lengths or tuple(range(longest + 1))
    limits = StepLimits(steps.max_requests, steps.max_requests * (longest + 1), lengths, pads=True)

    def clock() -> float:
        return worker.ranks.agree(perf_counter_ns()) / 1e9

    def timed() -> Measurement:
        return measure(steps.run, step_sizes(limits), seconds, clock)

    found = on_rank_0(worker.ranks, timed, lambda measured: costs_at_start(key_of(worker), measured))
    if found is not None and found.costs:
        drafting.start_costs = found
        drafting.step_planner.stage.calibrate(found.costs)


def on_rank_0(
    ranks: RankGroup, timed: Callable[[], Measurement], find: Callable[[Callable[[], Measurement]], StartCosts]
) -> StartCosts | None:
    """Return on rank 0 what `find` returns, given `timed`; if it calls that, all ranks do.  None on other ranks.

    Whatever fails, no rank stops or waits for a message that rank 0 does not send.
    """
    if ranks.rank:
        if ranks.agree(0):
            _contained(timed)
        return None
    begun: list[int] = []

    def on_all() -> Measurement:
        begun.append(ranks.agree(1))
        return timed()

    found = _contained(lambda: find(on_all))
    if not begun:
        ranks.agree(0)
    return found


def _contained(action: Callable[[], T]) -> T | None:
    """Return what an action returns; None if it fails, as no server may stop for want of these costs."""
    try:
        return action()
    except Exception:  # whatever an engine raises; a failed step fails on all ranks
        logger.exception("steps are not timed at start, so their costs are learnt while serving")
        return None


def key_of(worker: SpeculativeWorker) -> dict[str, object]:
    """Return everything that the costs of a worker's steps depend on."""
    from sglang.srt.runtime_context import get_exec

    arguments: Any = resolved_args(worker.server_args)
    drafting = worker.drafting
    graphs = get_exec().graph.cuda_graph_config
    on_gpu = worker.device.type == "cuda"
    return {
        "engine": f"sglang {seams.installed_version()}",
        "torch": torch.__version__,
        **{name: str(getattr(arguments, name, None)) for name in ARGUMENTS},
        "device": torch.cuda.get_device_name() if on_gpu else str(worker.device),
        "host": socket.gethostname(),
        "threads": None if on_gpu else torch.get_num_threads(),
        "affinity": None if on_gpu else sorted(os.sched_getaffinity(0)),
        "graphs": None if graphs is None else str(graphs.decode.bs),
        "requests": worker.req_to_token_pool.req_to_token.shape[0] - 1,
        "draft_lengths": [drafting.caps.max_draft_length, *drafting.caps.captured_draft_lengths],
        "policy": drafting.resolved.settings.policy,
        "seconds": drafting.resolved.settings.costs.seconds,
    }


class TimedSteps:
    """Runs steps of a worker whose memory is allocated and whose graphs are captured.

    Args:
        worker: the worker; it must not have served a request.

    Attributes:
        max_requests: rows of the largest batch.
    """

    def __init__(self, worker: SpeculativeWorker) -> None:
        self._worker = worker
        self._device = worker.device
        self._pool = worker.req_to_token_pool.req_to_token  # [S, L] int32
        self.max_requests = self._pool.shape[0] - 1
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
        context = min(CONTEXT, self._max_context(rows, length))
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

    def _max_context(self, requests: int, draft_length: int) -> int:
        """Return the most context tokens of each row for which the cache has room; below 1 if there is none."""
        places = self._pages // requests * self._page
        return min(places, self._worker.drafting.max_length) - draft_length - 2

    def _wait(self) -> None:
        if self._module is not None:
            self._module.synchronize()

    def _draft(self, requests: int, draft_length: int) -> Draft | None:
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
        worker.table.tokens[slots.to(device), context] = self._tokens(requests)
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
