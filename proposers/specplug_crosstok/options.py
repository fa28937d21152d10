"""The settings of the proposer `crosstok`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Route = Literal["auto", "slem", "tli"]


class CrossTokSettings(BaseModel):
    """The draft model, where it runs, and how its tokens become the target's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(
        default="", description="the draft model: a folder, or a model id at Hugging Face; it has to be given"
    )
    route: Route = Field(
        default="auto",
        description="slem re-encodes the drafted text with the target's tokenizer; tli drafts only tokens that both "
        "vocabularies have; auto uses whichever is accepted more",
    )
    device: str = Field(
        default="auto",
        description="where the draft model runs; auto is a GPU if there is one. For batches on a "
        "GPU, that is their device",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="its weights and cache; auto is the checkpoint's, and float32 on a CPU"
    )
    max_requests: int = Field(
        default=64, ge=1, description="the most requests at a time that it drafts for; each has a key-value cache"
    )
    max_context: int = Field(
        default=4096,
        ge=64,
        description="the most tokens of a request that it reads, the newest ones; its cache has this size",
    )
    prefill_chunk: int = Field(
        default=512, ge=16, description="the most tokens a step by which it catches up with long prompts"
    )
    min_survival: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="no further token is drafted where the probability that the whole draft is accepted has fallen "
        "below this, for all requests of a step; batches on a GPU read nothing back, and do not stop early",
    )
    max_ms: float | None = Field(
        default=80.0,
        gt=0,
        description="milliseconds of a step after which it drafts no further token; null sets no limit. Batches "
        "on a GPU wait for no clock, and have none",
    )
