"""The roofline model of a step's cost: bound by memory traffic up to some number of tokens, by arithmetic above it."""

from __future__ import annotations

from typing import NamedTuple

from specplug_batch.options import BatchOptions


class Roofline(NamedTuple):
    """The cost of a step of T tokens is `max(1, T / saturation) + overhead`, in units of a memory-bound step's time."""

    saturation: int
    overhead: float

    @classmethod
    def of(cls, options: BatchOptions) -> Roofline:
        """Return the roofline of the settings."""
        return cls(options.saturation, options.overhead)

    def cost(self, num_tokens: float) -> float:
        """Return the cost of a step of `num_tokens` tokens: the draft tokens and one per decoding request."""
        return max(1.0, num_tokens / self.saturation) + self.overhead
