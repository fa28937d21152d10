"""SGLang's workers of its own draft models, such as EAGLE, with draft lengths that specplug plans.

A step runs with the runtime state of its draft length, as SGLang's adaptive speculation does: the target's attention
backend, two of the draft model's, and on a GPU their graphs.  The draft model sees every token, also in steps without
drafts: its key-value cache would otherwise lack entries that later drafts attend to (vLLM 53420, 53426).
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor

from specplug.seams.seam import hook
from specplug_sglang import doctor, seams
from specplug_sglang.scheduler.drafting import Drafting
from specplug_sglang.scheduler.grammar import shorten_rollbacks
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification import acceptance
from specplug_sglang.verification.trees import cut

_SWITCHES = "sglang.srt.speculative.eagle_worker_v2"
"""The logger to which SGLang writes a line per change of the draft length."""

INEXACT = ("penalties", "min_new_tokens", "grammar")
"""Features, see `inexact_feature`, that these workers serve exactly only if a step emits one token.

Their verification never applies the others.
"""


class RuntimeStates:
    """The states of a worker by draft length; it stands in for SGLang's `AdaptiveController`.

    Args:
        worker: SGLang's, with specplug's plans.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._drafting: Drafting = worker.drafting
        self._states: dict[int, Any] = {}

    def register(self, state: Any) -> None:
        """Store a state under the draft length that it verifies."""
        self._states[state.speculative_num_draft_tokens - 1] = state

    def init_states(self, cuda_graph_bs: list[int] | None = None) -> None:
        """Build the states that are missing; every draft length is captured for every batch size."""
        for length in self._drafting.caps.captured_draft_lengths:
            if length not in self._states:
                how = {
                    "speculative_num_steps": self._worker.steps_of(length),
                    "speculative_num_draft_tokens": length + 1,
                }
                self.register(self._worker.build_adaptive_runtime_state(**how))

    def activate_step_by_batch(self, batch_size: int) -> None:
        """Apply the state of the newest plan's draft length."""
        state = self._states[self._drafting.length]
        if state.speculative_num_draft_tokens != self._worker.speculative_num_draft_tokens:
            self._worker.speculative_num_steps = None  # SGLang leaves out a state of as many steps as it has
            self._worker.apply_runtime_state(state)

    def on_verify_complete(self, num_correct_drafts_per_req: list[int], batch_size: int = 0) -> None:
        """Process a step's accepted counts by row."""
        self._drafting.results.verified(num_correct_drafts_per_req)


@functools.cache
def planned(worker: type) -> type:
    """Return SGLang's class of workers with specplug's plans."""
    return type(f"Planned{worker.__name__}", (PlannedWorker, worker), {})


class PlannedWorker:
    """Mixin of SGLang's workers, before which it must stand among the bases."""

    target_worker: Any

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.speculative import eagle_worker_common

        seams.require("engine drafts")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)  # type: ignore[call-arg]
        self.model_runner = target_worker.model_runner
        self.drafting = Drafting(server_args, target_worker, RankGroup(get_parallel().tp_group), INEXACT)
        self.adaptive_controller = RuntimeStates(self)
        logging.getLogger(_SWITCHES).addFilter(lambda record: "Switch adaptive" not in record.getMessage())
        shorten_rollbacks(server_args)
        acceptance.count_lossy(server_args)
        sampler = self.model_runner.sampler

        def sample(*args: Any, **kwargs: Any) -> acceptance.Verified:
            return acceptance.sample(sampler, *args, **kwargs)

        hook(eagle_worker_common, "eagle_sample", sample)
        if self.drafting.rank == 0:
            doctor.launch_of(server_args).announce()

    def alloc_memory_pool(self, *args: Any, **pools: Any) -> None:
        """Store the pools; refuse a request pool with more rows than there are slots (`EngineError`)."""
        super().alloc_memory_pool(*args, **pools)  # type: ignore[misc]
        self.drafting.refuse_larger_pool(self.target_worker.get_memory_pool()[0])

    def steps_of(self, length: int) -> int:
        """Return how many of `length` draft tokens SGLang's drafter drafts."""
        return length

    def init_cuda_graphs(self) -> None:
        """Build the runtime state of each draft length, and on a GPU capture its graphs.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        from specplug_sglang.verification.draft_lengths import refuse_fused_accept

        refuse_fused_accept(self.model_runner.attn_backend)
        super().init_cuda_graphs()  # type: ignore[misc]

    def clear_cache_pool(self) -> None:
        """Notify proposers as well."""
        super().clear_cache_pool()  # type: ignore[misc]
        self.drafting.on_engine_event("cache flushed")

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one step of a batch, a prefill or drafts and their verification, as SGLang does."""
        drafting = self.drafting
        reqs = batch.reqs
        slots = batch.req_pool_indices
        before = batch.seq_lens
        if not batch.forward_mode.is_decode():
            drafting.prefill(reqs)
            result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
            drafting.append_first(reqs, slots, before, result.next_token_ids.to(torch.int32))
            return result
        # With a barrier, SGLang's grammars accept the tokens of the step before while this one is verified.
        self.begin(batch, drafting.plan(reqs), has_grammars=batch.has_grammar and kwargs.get("grammar_barrier") is None)
        result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
        lengths = self.draft_lengths(result.accept_lens)
        result.cap_lens = (0 * result.accept_lens if lengths is None else lengths) + 1  # what a row verifies
        drafting.add_launched(reqs, 0 if lengths is None else drafting.length, result)
        return result

    def begin(self, batch: Any, draft_length: int, *, has_grammars: bool) -> None:
        """Prepare for a step that decodes; `has_grammars`: there are some, which have accepted all tokens so far."""

    @property
    def limits(self) -> Tensor | None:
        """[B], most draft tokens of each request by the newest plan and its own cap; None if none is limited."""
        rows = self.drafting.rows
        planner = self.drafting.step_planner
        return rows.caps_of(planner.plan) if planner.policy_caps() else rows.limits  # which stay on the device

    def draft_lengths(self, accept_lens: Tensor) -> Tensor | None:
        """Return the lengths [B] of the newest step's drafts, as far as they may be accepted; None without drafts."""
        length = self.drafting.length
        if not length:
            return None
        limits = self.limits
        lengths = torch.full_like(accept_lens, length)
        return lengths if limits is None else lengths.minimum(limits)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify a step's drafts, no more tokens of each than its request allows."""
        drafts = batch.spec_info
        limits = self.limits
        if limits is not None and drafts.draft_token_num > 1:
            drafts.retrieve_next_token = cut(drafts.retrieve_next_token, limits)
        return super().verify(batch, *args, **kwargs)  # type: ignore[misc]
