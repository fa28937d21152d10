"""What a step costs by the two roofs of a machine: memory traffic up to some number of tokens, arithmetic above."""

from __future__ import annotations

from typing import NamedTuple

from specplug_batch.options import BatchOptions


class Roofline(NamedTuple):
    """A step of T tokens costs `max(1, T / saturation) + overhead` of the time that a step waits for memory."""

    saturation: float
    overhead: float

    @classmethod
    def of(cls, options: BatchOptions) -> Roofline:
        """Return the roofline that the settings state."""
        return cls(options.saturation, options.overhead)

    def cost(self, num_tokens: float) -> float:
        """Return the cost of a step of so many tokens, draft tokens and one per decoding request."""
        return max(1.0, num_tokens / self.saturation) + self.overhead

    def plain_rate(self, batch_size: float) -> float:
        """Return the tokens per cost of steps without drafts."""
        return batch_size / self.cost(batch_size)
