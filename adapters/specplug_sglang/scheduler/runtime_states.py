"""SGLang's workers of its own draft models, with a runtime state of SGLang's for each draft length that plans choose.

A state holds what a step of one length runs with: the target's attention backend, two of the draft model's, and on a
GPU their graphs.  SGLang's adaptive speculation builds and applies them likewise.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from specplug.seams.seam import hook
from specplug_sglang import doctor, seams
from specplug_sglang.scheduler.grammar import shorten_rollbacks
from specplug_sglang.scheduler.planned_steps import PlannedSteps
from specplug_sglang.scheduler.ranks import RankGroup
from specplug_sglang.verification import acceptance

_SWITCHES = "sglang.srt.speculative.eagle_worker_v2"
"""The logger to which SGLang writes a line per change of the draft length."""


INEXACT = ("penalties", "min_new_tokens", "grammar")
"""Features, see `served_plainly`, that these workers serve exactly only if a step emits one token.

Their verification never applies the others.
"""


class RuntimeStates:
    """The states of a worker by draft length; it stands in for SGLang's `AdaptiveController`.

    Args:
        worker: SGLang's.
        drafting: its plans; `length` is the newest one's draft length.
    """

    def __init__(self, worker: Any, drafting: Any) -> None:
        self._worker = worker
        self._drafting = drafting
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
        self._drafting.verified(num_correct_drafts_per_req)


class StatesWorker(ABC):
    """Mixin of SGLang's workers, before which it must stand among the bases."""

    target_worker: Any

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.speculative import eagle_worker_common

        seams.require("engine drafts")
        super().__init__(server_args, gpu_id, nccl_port, target_worker)  # type: ignore[call-arg]
        ranks = RankGroup(get_parallel().tp_group)
        self.drafting = self._plans(server_args, ranks)
        self.adaptive_controller = RuntimeStates(self, self.drafting)
        logging.getLogger(_SWITCHES).addFilter(lambda record: "Switch adaptive" not in record.getMessage())
        shorten_rollbacks(server_args)
        acceptance.count_lossy(server_args)
        hook(eagle_worker_common, "eagle_sample", acceptance.sampling_by(target_worker.model_runner.sampler))
        if ranks.rank == 0:
            doctor.launch_of(server_args).announce()

    @abstractmethod
    def _plans(self, server_args: Any, ranks: RankGroup) -> PlannedSteps:
        """Return the plans of the worker's steps."""

    def steps_of(self, length: int) -> int:
        """Return how many of `length` draft tokens SGLang's drafter drafts."""
        return length

    def init_cuda_graphs(self) -> None:
        """Build the runtime state of each draft length, and on a GPU capture its graphs.

        Raises:
            EngineError: the model's attention keeps state that only steps of a fixed draft length can read.
        """
        from specplug_sglang.verification.draft_lengths import refuse_fused_accept

        refuse_fused_accept(self.target_worker.model_runner.attn_backend)
        super().init_cuda_graphs()  # type: ignore[misc]
