"""Costs of an engine's steps, measured at start and corrected in service, and the rate at which a server emits.

`measuring` times steps before the first request; in service `StepPlanner.finish` times each step, for `step_costs`,
whose predictions `corrections` adjusts by recent steps.
"""

from specplug.cost.planner import ServerRate
from specplug.cost.step_costs import StepCosts

__all__ = ["ServerRate", "StepCosts"]
