"""Policies that never change their mind: a constant gamma, and no speculation."""
