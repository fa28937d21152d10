"""Draft lengths of the rows of vLLM's steps: the length that a plan gives all rows, and the cuts of single requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specplug.types.caps import DraftLengthChange, EngineCaps
from specplug.types.step import StepPlan
from specplug_vllm.config import drafter_of, runner_of, use_of
from specplug_vllm.requests import DraftRules
from specplug_vllm.startup import recurrent

TAKE_A_LENGTH = ("draft_model", "eagle", "eagle3", "mtp", "ngram")
"""Methods whose drafters take a step's draft length from V1.  The others draft their maximum or fail."""


class RowLengths:
    """The draft lengths of a scheduler's steps.

    Args:
        vllm_config: config of a server with specplug enabled.
        caps: the engine's capabilities.
        rules: cut the drafts of single requests.

    Attributes:
        length: draft tokens of each row of the next step, before caps.
        drafted: draft tokens per row that the drafter makes: `length`, or the maximum if it takes no length.
        placeholders: draft tokens that vLLM may expect of a request that joins the next step.
        pads: whether rows are padded to a length that has CUDA graphs.  A single shorter row would take the step off
            its graph, so the worker applies caps, and accepted padding does not count as a draft.
    """

    def __init__(self, vllm_config: Any, caps: EngineCaps, rules: DraftRules) -> None:
        self._caps = caps
        self._rules = rules
        self._is_engines = use_of(vllm_config) == "engine"
        self._takes_length = not self._is_engines or rules.runner == "v2" or drafter_of(vllm_config) in TAKE_A_LENGTH
        self._may_narrow = caps.draft_length_change is not DraftLengthChange.FIXED
        self.pads = caps.draft_length_change is DraftLengthChange.CAPTURED
        self._plan: StepPlan | None = None
        self.length = self.placeholders = self.drafted = 0
        reserved = vllm_config.speculative_config.max_num_new_slots_for_drafting
        self._max_placeholders = fit_placeholders(vllm_config.scheduler_config, reserved)
        if recurrent.is_recurrent(vllm_config) or runner_of(vllm_config) == "v1":
            # A recurrent model's new prompt runs as prefill, which cannot roll placeholders back.  V1 rejects them with
            # numbers of the request's own generator, which then gives other text for the same seed.
            self._max_placeholders = 0

    def follow(self, plan: StepPlan, running: Iterable[Any]) -> None:
        """Set the lengths to what a plan needs.

        Where CUDA graphs are captured per draft length, all rows get the shortest captured length that fits them.
        """
        if plan is self._plan and not plan.caps:
            return
        self._plan = plan
        captured = self._caps.captured_draft_lengths
        if self.pads:
            longest = max((plan.draft_length_for(one.request_id) for one in running), default=plan.draft_length)
            self.length = min((each for each in captured if each >= longest), default=self._caps.max_draft_length)
        elif self._may_narrow:
            self.length = plan.draft_length
        else:
            self.length = self._caps.max_draft_length if plan.draft_length or 0 not in captured else 0
        self.drafted = self.length if self._takes_length else self._caps.max_draft_length
        self.placeholders = min(self.length, self._max_placeholders)

    def cut(self, plan: StepPlan, running: Iterable[Any]) -> None:
        """Cut the drafts of running requests, or their placeholders, to the newest plan and by the rules.

        The drafts of vLLM's own drafter are always cut here, as no worker of specplug's could.
        """
        is_capped = bool(plan.caps) and not self.pads
        cuts = self._is_engines or is_capped or not self._may_narrow
        if not cuts and self._rules.runner == "v2":
            return
        for request in running:
            if cuts and len(request.spec_token_ids) > (allowed := plan.draft_length_for(request.request_id)):
                request.spec_token_ids = request.spec_token_ids[:allowed]
            self._rules.cut(request)


def fit_placeholders(scheduler_config: Any, reserved: int) -> int:
    """Return how many draft tokens at most vLLM may expect of a request that joins with one token to compute.

    vLLM fails if they exceed a prompt's chunk, and does not start a request while they exceed a step's token budget.

    Args:
        scheduler_config: vLLM's `SchedulerConfig`.
        reserved: the tokens of a step's budget that each row leaves to the engine's own drafter.
    """
    chunk = scheduler_config.long_prefill_token_threshold
    batched = scheduler_config.max_num_batched_tokens
    budget = min(scheduler_config.max_num_scheduled_tokens or batched, batched - reserved)
    return int(min(chunk, budget) if chunk > 0 else budget) - 1
