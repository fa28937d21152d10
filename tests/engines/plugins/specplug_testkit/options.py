"""The settings of the test plug-ins.  None takes anything from the environment."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """Base of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OracleOptions(Options):
    """Where to err in right answers."""

    error_every: int = Field(default=0, ge=0, description="each n-th token of the answer is wrong; 0: none")


class BranchesOptions(Options):
    """The tokens that are drafted after each token."""

    after: tuple[tuple[int, ...], ...] = Field(default=(), description="by token: drafts behind it, first to last")


class DrawnOptions(Options):
    """The distribution that tokens are drawn from: softmax(logits / temperature) over `tokens`."""

    tokens: tuple[int, ...] = Field(default=(), description="ids to draw from; empty: the whole vocabulary")
    spread: float = Field(default=0.0, ge=0, description="how far the logits lie apart; 0 is the uniform law")
    lies_to: str | None = Field(default=None, description="the tenant whose requests get a false law stated")


class SplicedOptions(Options):
    """The proposers to splice."""

    parts: tuple[str, ...] = Field(
        default=("ngram", "bigram"), description="the proposers, the first one's drafts first"
    )


class RaisesOptions(Options):
    """The steps at which to raise."""

    call: Literal["propose", "on_event"] = Field(default="propose", description="in which call")
    every: int = Field(default=1, ge=1, description="each n-th call raises, beginning with the first")
    rank: int | None = Field(default=None, description="only on this rank; None: on all")
    hostile: bool = Field(default=False, description="the exception's own methods raise, too")


class SlowOptions(Options):
    """The duration of a step."""

    seconds: float = Field(default=0.2, ge=0)
    every: int = Field(default=1, ge=1, description="only each n-th step is slow")


class LadderOptions(Options):
    """The plans, in turn."""

    draft_lengths: tuple[int, ...] = Field(
        default=(0, 1, 2, 4, 8), min_length=1, description="one per step, cut to the widest"
    )
    caps: tuple[int | None, ...] = Field(default=(), description="one per request as they appear; None: no cap")
