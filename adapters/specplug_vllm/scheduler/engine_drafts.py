"""vLLM's schedulers for drafts of vLLM's own drafters, such as EAGLE, MTP and draft models: the plans, and counts.

vLLM runs its drafter on every step, also with a draft length of 0: a drafter with a key-value cache must see every
token, or later drafts would attend to missing entries (vLLM 53420, 53426).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from specplug.runtime.outcome_counts import OutcomeCounts
from specplug.runtime.step_planner import Fate
from specplug.types.plan import StepPlan
from specplug_vllm import seams
from specplug_vllm.config import engine_method, may_skip_drafts, ranks_step_together, runner_of
from specplug_vllm.scheduler.planned import Planned

TAKE_A_LENGTH = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
"""Methods whose drafters take a step's draft length from V1.  The others draft their maximum or fail."""


class _EngineDrafts(Planned):
    """Mixin that applies the plans to drafts of vLLM's own drafter.

    Rows are cut here, as no worker of specplug's could.  A single shorter row takes a step off its CUDA graph.

    Attributes:
        counts: results of the drafts.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        seams.require("engine drafts")
        super().__init__(*args, **kwargs)
        method = engine_method(self.vllm_config)
        assert method is not None
        self.counts = OutcomeCounts(method, self.step_planner.caps.max_draft_length)
        self._asks_ranks = ranks_step_together(self.vllm_config) and may_skip_drafts(self.vllm_config)
        self._takes_length = runner_of(self.vllm_config) == "v2" or method in TAKE_A_LENGTH

    def _count(self, plan: StepPlan, fates: list[Fate], sent: Sequence[Any]) -> None:
        """Count a step's drafts and tokens."""
        emitted = {each.request_id: len(each.new_token_ids) for each in sent if each.new_token_ids}
        off = sum(map(plan.takes_none, emitted.keys() - {name for name, *_ in fates}))
        self.counts.record(fates, len(emitted), sum(emitted.values()), off)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        """Ask the other data-parallel ranks to skip the drafts of a step whose plan has none.

        If one of them drafts, this one does, too, as the drafter's forward passes are of all ranks.  By then vLLM has
        noted that the next step verifies none of these drafts.
        """
        super()._update_after_schedule(scheduler_output)
        if self._asks_ranks and not scheduler_output.num_spec_tokens_to_schedule:
            scheduler_output.num_spec_tokens_to_schedule = self.step_planner.caps.max_draft_length
            scheduler_output.skip_drafts = True

    def _drafted_length(self) -> int:
        """Return the plan's length, or the maximum if the drafter takes no length."""
        return self._row_length if self._takes_length else self.step_planner.caps.max_draft_length

    def _cut_drafts(self, plan: StepPlan) -> None:
        """Cut drafts that are longer than the plan allows their requests, or their placeholders."""
        most = min(self._row_length, plan.draft_length)
        for request in self.running:
            allowed = min(most, plan.caps.get(request.request_id, most)) if plan.caps else most
            if len(request.spec_token_ids) > allowed:
                request.spec_token_ids = request.spec_token_ids[:allowed]


class EngineDraftsScheduler(_EngineDrafts, Scheduler):
    """vLLM's scheduler with specplug's plans for vLLM's own drafter."""


class EngineDraftsAsyncScheduler(_EngineDrafts, AsyncScheduler):
    """vLLM's asynchronous scheduler with specplug's plans for vLLM's own drafter."""
