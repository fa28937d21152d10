"""Table by batch size: vLLM's `num_speculative_tokens_per_batch_size`, filled in from offline measurements.

The operator states ranges of batch sizes and a draft length for each (vLLM 0.32, `config/speculative.py`).  Here each
range is a power of two and gets the length with the most tokens per second on the profile: the table of an operator
who measured everything, on the traffic to come.
"""

from __future__ import annotations

from benchmarks.simulate.peers.setup import PeerSetup
from specplug.interfaces import Planner, PluginContext
from specplug.plugins.specs import PolicySpec
from specplug.types.plan import HostStats, StepPlan


class TablePlanner(Planner):
    """Plans the draft length of the batch size's range."""

    def __init__(self, context: PluginContext, lengths: dict[int, int]) -> None:
        """Take the draft lengths by the number of binary digits of the batch size."""
        self._plans = {digits: StepPlan(context.caps.fit_draft_length(length)) for digits, length in lengths.items()}
        self._longest = max(self._plans)

    def plan(self, stats: HostStats) -> StepPlan:
        """Return the plan of the range."""
        return self._plans[min(max(1, len(stats.requests)).bit_length(), self._longest)]


def table(setup: PeerSetup) -> PolicySpec:
    """Return the spec of the table that is best on the profile."""
    middles = {digits: 3 * 2**digits // 4 or 1 for digits in range(1, 11)}
    lengths = {digits: setup.profile.best_length(rows) for digits, rows in middles.items()}
    return PolicySpec(
        name="table",
        factory=lambda context: TablePlanner(context, lengths),
        summary="a draft length for each range of batch sizes",
    )
