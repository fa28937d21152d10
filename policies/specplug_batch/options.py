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
        default=256, ge=1, description="tokens per step up to which further ones are free: a step waits for memory"
    )
    overhead: float = Field(
        default=0.02, ge=0.0, description="what a step costs besides, as a share of a step that waits for memory"
    )
    margin: float = Field(
        default=0.01, ge=0.0, description="by how much more than its cost a draft token must bring, as a share of it"
    )
    horizon: int = Field(default=256, ge=1, description="steps over which the server's rate is averaged")
    batch_size: int | None = Field(
        default=None, ge=1, description="requests to reckon with; None is as many as there are"
    )
    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )
