"""The settings of the lossy verifiers `threshold` and `typical`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ThresholdSettings(BaseModel):
    """Settings of the verifier `threshold`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="least probability of an accepted token, relative to that of the likeliest one, for requests that "
        "name no acceptance_threshold; 1 is lossless",
    )


class TypicalSettings(ThresholdSettings):
    """Settings of the verifier `typical`."""

    threshold: float = Field(
        default=0.09,
        gt=0,
        le=1,
        description="epsilon of typical acceptance, whose delta is its square root, for requests that name no "
        "acceptance_threshold; 1 is lossless",
    )
