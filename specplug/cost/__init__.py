"""Costs of an engine's steps, learnt while serving, and what draft tokens have to be worth by them."""

from specplug.cost.prices import entry_and_prices, prices_of
from specplug.cost.step_costs import StepCosts

__all__ = ["StepCosts", "entry_and_prices", "prices_of"]
