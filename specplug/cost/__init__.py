"""Costs of an engine's steps, learnt while serving: from measured steps to the time of steps not yet run."""

from specplug.cost.step_costs import StepCosts

__all__ = ["StepCosts"]
