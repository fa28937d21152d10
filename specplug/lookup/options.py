"""The settings shared by all proposers that draft by lookup."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from specplug.lookup.layout import LONGEST


class LookupSettings(BaseModel):
    """Settings of matches and of the response memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_n: int = Field(
        default=0,
        ge=0,
        le=LONGEST,
        description="shortest match to draft from, in tokens; 0 also continues a copy past a token that differs",
    )
    max_n: int = Field(
        default=64,
        ge=2,
        le=1024,
        description="without effect: matches are compared over at most 64 tokens; still accepted in configurations",
    )
    min_survival: float = Field(
        default=0.001,
        ge=0,
        le=1,
        description="a draft ends where its survival probability falls below this",
    )
    memory_tokens: int = Field(
        default=1 << 20,
        ge=0,
        le=1 << 28,
        description="size of the response memory in tokens, 20.25 bytes each, on the engine's device; the "
        "oldest go first; 0 keeps only what siblings share",
    )
    memory_scope: Literal["isolated", "server"] = Field(
        default="isolated",
        description="responses that a request drafts from: those of its own isolation key, or all on this server",
    )
    memory_forget: Literal["weights", "flush", "never"] = Field(
        default="weights",
        description="when the response memory is cleared: with new weights and a flushed cache, only with a flushed "
        "cache, or never",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=64,
        description="without effect: a step runs on the engine's device; still accepted in configurations",
    )
