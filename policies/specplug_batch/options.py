"""The settings of the policy `batch`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

REMOVED = {
    "overhead": "the costs of steps are measured at start",
    "margin": "a step verifies what yields most, by any margin",
}
"""Settings of earlier versions, and why they are refused."""


class BatchOptions(BaseModel):
    """A limit on draft tokens, and the size of a step up to which tokens are free while no step was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    saturation: int = Field(
        default=256, ge=1, description="tokens per step up to which more tokens are free, while no step was measured"
    )
    token_budget: int | None = Field(
        default=None, ge=0, description="draft tokens that the whole batch may verify per step; None is no limit"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, values: Any) -> Any:
        for name, reason in REMOVED.items():
            if isinstance(values, dict) and name in values:
                raise ValueError(f"{name!r} was removed, as {reason}; leave it out")
        return values

    def cost(self, num_tokens: float) -> float:
        """Return the assumed cost of a step of `num_tokens` tokens, relative to one that is bound by memory."""
        return max(1.0, num_tokens / self.saturation)
