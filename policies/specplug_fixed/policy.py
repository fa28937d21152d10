"""The two policies that never change their mind."""

from __future__ import annotations

from specplug.errors import SettingsError
from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import NO_SPECULATION, HostStats, StepPlan
from specplug_fixed.options import FixedOptions


class ConstantGamma(Planner):
    """Plans the same width at every step: `gamma`, or what the server allows, fitted to what the engine can run.

    Raises:
        SettingsError: `gamma` is more than the server's num_speculative_tokens, for which memory was set aside.
    """

    def __init__(self, context: PluginContext) -> None:
        options: FixedOptions = context.options or FixedOptions()
        widest = context.caps.max_draft_length
        gamma = widest if options.gamma is None else options.gamma
        if gamma > widest:
            raise SettingsError.build(
                "gamma is too wide",
                who="policy 'fixed'",
                found=gamma,
                expected=f"at most num_speculative_tokens, {widest}",
                remedy="Raise num_speculative_tokens or lower gamma",
            )
        self._draft_length = context.caps.fit_draft_length(gamma)
        self._token_budget = options.token_budget

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the constant width, with the caps that requests have set for themselves."""
        caps = {r.request_id: r.cap for r in stats.requests if r.cap is not None and r.cap < self._draft_length}
        return StepPlan(self._draft_length, self._token_budget, caps)


class NoSpeculation(Planner):
    """Plans plain decoding at every step."""

    def __init__(self, context: PluginContext) -> None:
        """Need nothing; a context is taken because every planner is built with one."""

    def plan(self, stats: HostStats) -> StepPlan:
        """Return width 0."""
        return NO_SPECULATION
