"""A policy that never plans the same draft length twice in a row."""

from __future__ import annotations

from specplug.interfaces import Planner, PluginContext
from specplug.types.plan import HostStats, StepPlan
from specplug_testkit.options import LadderOptions


class Ladder(Planner):
    """Plans the given draft lengths in turn, and caps requests in the order in which they appear."""

    def __init__(self, context: PluginContext) -> None:
        self._options: LadderOptions = context.options or LadderOptions()
        self._longest = context.caps.max_draft_length
        self._step = 0
        self._order: dict[str, int] = {}
        self.planned: list[int] = []

    def plan(self, stats: HostStats) -> StepPlan:
        options = self._options
        draft_length = min(options.draft_lengths[self._step % len(options.draft_lengths)], self._longest)
        self._step += 1
        self.planned.append(draft_length)
        caps: dict[str, int] = {}
        for request in stats.requests:
            number = self._order.setdefault(request.request_id, len(self._order))
            own = options.caps[number % len(options.caps)] if options.caps else None
            limits = [limit for limit in (own, request.cap) if limit is not None]
            if limits:
                caps[request.request_id] = min(limits)
        return StepPlan(draft_length, caps=caps)
