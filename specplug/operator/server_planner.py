"""ServerPlanner: the step planner of a server, with its settings' policy and under its operator's limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from specplug.assembly import build_plan_stage
from specplug.interfaces import PluginContext
from specplug.operator.control import OperatorControl
from specplug.plugins.registry import Registry, default_registry
from specplug.settings.sources import ResolvedSettings
from specplug.steps.step_planner import Bounds, StepPlanner

R = TypeVar("R")


class ServerPlanner(StepPlanner[R]):
    """Plans steps of a server's engine.

    Args:
        resolved, context: the server's settings, and the context that the policy is built with.
        identify, measure, bounds: see `StepPlanner`.
        registry: registry of plug-ins; by default the installed ones.

    Attributes:
        control: the operator's control.
        faults: counts per plug-in and kind, as in `SpecMetrics`.
    """

    def __init__(
        self,
        resolved: ResolvedSettings,
        context: PluginContext,
        identify: Callable[[R], str],
        measure: Callable[[R], int],
        bounds: Callable[[R], Bounds],
        registry: Registry | None = None,
    ) -> None:
        self.resolved = resolved
        self.control = OperatorControl(resolved.settings)
        self.faults: Counter[tuple[str, str]] = Counter()
        plugins = registry or default_registry()
        stage = build_plan_stage(resolved.settings, plugins, context, lambda *fault: self.faults.update([fault]))
        super().__init__(stage, context.caps, self.control.ceiling, identify, measure, bounds)
