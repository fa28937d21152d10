"""The settings of the policy `batch`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class BatchOptions(BaseModel):
    """Limits on draft lengths, and the cost model of a step: `max(1, tokens / saturation) + overhead`, in any unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma_small: int = Field(
        default=32, ge=0, description="most draft tokens per request and step with up to `small_batch` requests"
    )
    gamma_large: int = Field(default=16, ge=0, description="most draft tokens per request and step with more requests")
    small_batch: int = Field(default=8, ge=0, description="most requests that `gamma_small` is for")
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
