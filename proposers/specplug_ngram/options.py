"""The settings of the plain n-gram proposer; the others take `specplug.match.options.LookupSettings`."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ReferenceSettings(BaseModel):
    """The shortest and the longest match, in tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_n: int = Field(default=2, ge=1, description="shortest match that is drafted from")
    max_n: int = Field(default=8, ge=1, description="longest match that is looked for; longer ones count as this long")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n is {self.min_n}, more than max_n, {self.max_n}; expected min_n <= max_n")
        return self
