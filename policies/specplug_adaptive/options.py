"""The settings of the policy `adaptive`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AdaptiveOptions(BaseModel):
    """How often the acceptance of requests is read, and what a step costs until that is measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    read_every: int = Field(default=4, ge=1, description="steps between two readings of the requests' acceptance")
    saturation: int = Field(
        default=256, ge=1, description="tokens per step up to which more are free, until step times are known"
    )
