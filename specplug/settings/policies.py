"""Settings of policies that decide by the costs of steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class CostOptions(BaseModel):
    """The size of a step up to which tokens are free while no step was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    removed: ClassVar[Mapping[str, str]] = {}
    """Settings of earlier versions, and why they were removed; the settings' errors say so."""

    saturation: int = Field(
        default=256, ge=1, description="tokens per step up to which more tokens are free, while no step was measured"
    )

    def cost(self, num_tokens: float) -> float:
        """Return the assumed cost of a step of `num_tokens` tokens, relative to one that is bound by memory."""
        return max(1.0, num_tokens / self.saturation)
