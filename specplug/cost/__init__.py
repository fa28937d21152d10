"""Costs of an engine's steps, learnt while serving, and what draft tokens have to be worth by them."""

from specplug.cost.prices import prices_of
from specplug.cost.step_costs import StepCosts

__all__ = ["StepCosts", "prices_of"]
