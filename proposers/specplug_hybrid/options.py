"""The settings of the proposer `hybrid`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class HybridSettings(BaseModel):
    """The two proposers; each takes its own settings under `options.<name>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lookup: str = Field(default="ngram", description="the proposer that looks drafts up, which costs next to nothing")
    model: str = Field(default="crosstok", description="the proposer that runs a model")
