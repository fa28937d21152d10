"""The planners of the two constant policies, and the settings of `fixed`."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field

from specplug.errors import SettingsError
from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import HostStats
from specplug.types.step import StepPlan


class FixedOptions(BaseModel):
    """A constant draft length and a constant budget."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma: int | None = Field(
        default=None, ge=0, description="draft tokens per request and step; None is the server's num_speculative_tokens"
    )
    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )


class ConstantGamma(Planner):
    """Plans the same draft length at every step: `gamma`, or the server's maximum, fitted to the engine.

    Raises:
        SettingsError: `gamma` is more than the server's num_speculative_tokens, for which memory is reserved.
    """

    is_constant = True

    def __init__(self, context: PluginContext) -> None:
        options: FixedOptions = context.options or FixedOptions()
        longest = context.caps.max_draft_length
        gamma = longest if options.gamma is None else options.gamma
        if gamma > longest:
            raise SettingsError.build(
                "gamma is too large",
                who="policy 'fixed'",
                found=gamma,
                expected=f"at most num_speculative_tokens, {longest}",
                remedy="Raise num_speculative_tokens or lower gamma",
            )
        self._plan = StepPlan(context.caps.fit_draft_length(gamma), options.token_budget)

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the constant draft length and budget."""
        return self._plan

    def longest_draft(self, batch_size: int) -> int:
        """Return the constant draft length."""
        return self._plan.draft_length


def no_speculation(context: PluginContext) -> Planner:
    """Return the planner of plain decoding at every step."""
    return ConstantGamma(replace(context, options=FixedOptions(gamma=0)))
