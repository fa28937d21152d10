"""The settings of the policy `batch`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BatchOptions(BaseModel):
    """A limit on draft tokens, and the cost of a step while none is measured, in any unit.

    It is `max(1, tokens / saturation) + overhead`, in units of a memory-bound step's time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    saturation: int = Field(
        default=256, ge=1, description="tokens per step up to which more tokens are free, as a step is memory-bound"
    )
    overhead: float = Field(
        default=0.02, ge=0.0, description="fixed cost of a step, as a share of a memory-bound step's time"
    )
    margin: float = Field(
        default=0.01,
        ge=0.0,
        description="least excess of a draft token's gain over its cost, as a share of the cost",
    )
    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )

    def cost(self, num_tokens: float) -> float:
        """Return the cost of a step of `num_tokens` tokens: the draft tokens and one per decoding request.

        It is bound by memory traffic up to some number of tokens, and by arithmetic above it.
        """
        return max(1.0, num_tokens / self.saturation) + self.overhead
