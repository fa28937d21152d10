"""The settings of the policy `fixed`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class FixedOptions(BaseModel):
    """A constant draft length and a constant budget."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gamma: int | None = Field(
        default=None, ge=0, description="draft tokens per request and step; None is the server's num_speculative_tokens"
    )
    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )
