"""SGLang's workers of its own draft models, such as EAGLE, with draft lengths that specplug plans.

A step runs with the runtime state of its draft length, as SGLang's adaptive speculation does.  The draft model sees
every token, also in steps without drafts: its key-value cache would otherwise lack entries that later drafts attend to
(vLLM 53420, 53426).
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController

from specplug_sglang import seams
from specplug_sglang.requests import finished_prefills
from specplug_sglang.scheduler.engine_drafting import EngineDrafting
from specplug_sglang.scheduler.grammar import shorten_rollbacks
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.startup import advice
from specplug_sglang.verification import lossy
from specplug_sglang.verification.draft_lengths import refuse_fused_accept
from specplug_sglang.verification.exact import rows_of_pool
from specplug_sglang.verification.trees import cut

_SWITCHES = "sglang.srt.speculative.eagle_worker_v2"
"""The logger to which SGLang writes a line per change of the draft length."""


@functools.cache
def planned(worker: type) -> type:
    """Return SGLang's class of workers with specplug's plans."""
    return type(f"Planned{worker.__name__}", (PlannedWorker, worker), {})


class PlannedWorker:
    """Mixin of SGLang's workers, before which it must stand among the bases.

    Attributes:
        drafting: requests, plans and counts.
    """

    server_args: Any
    target_worker: Any

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        seams.require("engine drafts")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)  # type: ignore[call-arg]
        ranks, runner = RankGroup(get_parallel().tp_group), target_worker.model_runner
        self.drafting = EngineDrafting(
            server_args,
            runner.model_config,
            slots=rows_of_pool(server_args),
            device=torch.device(runner.device),
            ranks=ranks,
        )
        self.adaptive_controller = AdaptiveController(self, self.drafting)  # builds the states with SGLang's graphs
        logging.getLogger(_SWITCHES).addFilter(lambda record: "Switch adaptive" not in record.getMessage())
        shorten_rollbacks(server_args)
        lossy.install(server_args)
        if ranks.leads:
            advice.launch_of(server_args).announce()

    def init_cuda_graphs(self) -> None:
        """Build the runtime state of each draft length, and on a GPU capture its graphs.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        refuse_fused_accept(self.target_worker.model_runner.attn_backend)
        super().init_cuda_graphs()  # type: ignore[misc]

    def forward_batch_generation(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one step of a batch, a prefill or drafts and their verification, as SGLang does."""
        reqs = batch.reqs
        if batch.forward_mode.is_decode():
            self.drafting.plan(reqs)
            result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
            self.drafting.launched(reqs)
            result.cap_lens = torch.tensor(self.drafting.newest_lengths, dtype=torch.int32) + 1
            return result
        result = super().forward_batch_generation(batch, *args, **kwargs)  # type: ignore[misc]
        self.drafting.prefilled([reqs[row] for row in finished_prefills(reqs)])
        return result

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify a step's drafts, no more tokens of each than its request allows."""
        drafts, limits = batch.spec_info, self.drafting.limits
        if limits is not None and drafts.draft_token_num > 1:
            drafts.retrieve_next_token = cut(drafts.retrieve_next_token, limits)
        return super().verify(batch, *args, **kwargs)  # type: ignore[misc]
