"""The settings of the test plug-ins.  None takes anything from the environment."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Call = Literal["warmup", "ingest", "propose", "observe", "on_event"]
Kind = Literal["range", "negative", "nan", "length", "source", "padding"]


class Options(BaseModel):
    """Base of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OracleOptions(Options):
    """Right answers, and where to err in them."""

    path: str | None = Field(default=None, description="JSON file: lists of token ids, each a prompt and its answer")
    error_every: int = Field(default=0, ge=0, description="each n-th token of the answer is wrong; 0: none")
    lengths: tuple[int, ...] = Field(default=(), description="draft lengths by answer length, in turn; empty: no limit")


class ThicketOptions(Options):
    """Right answers, and what is wrong beside them."""

    decoys: int = Field(default=1, ge=0, description="wrong siblings before each right node")
    after_decoys: bool = Field(default=False, description="a node hangs behind each wrong one")
    lengths: tuple[int, ...] = Field(default=(), description="nodes by answer length, in turn; empty: no limit")


class BranchesOptions(Options):
    """The tokens that are drafted after each token."""

    after: tuple[tuple[int, ...], ...] = Field(default=(), description="by token: drafts behind it, first to last")


class DrawnOptions(Options):
    """The distribution that tokens are drawn from: softmax(logits / temperature) over `tokens`."""

    tokens: tuple[int, ...] = Field(default=(), description="ids to draw from; empty: the whole vocabulary")
    spread: float = Field(default=0.0, ge=0, description="how far the logits lie apart; 0 is the uniform law")
    length: int | None = Field(default=None, ge=0, description="draft tokens per row; None: as many as allowed")
    lies_to: str | None = Field(default=None, description="the tenant whose requests get a false law stated")


class TinyModelOptions(Options):
    """The draft model's."""

    first: int = Field(default=0, ge=0, le=1, description="the draft vocabulary's first id; every second one follows")
    sharpness: float = Field(default=3.0, ge=0, description="how far its scores lie apart")


class SplicedOptions(Options):
    """The proposers to splice."""

    parts: tuple[str, ...] = Field(
        default=("ngram", "bigram"), description="the proposers, the first one's drafts first"
    )


class RaisesOptions(Options):
    """The steps at which to raise."""

    call: Call = Field(default="propose", description="in which call")
    first: int = Field(default=0, ge=0, description="calls that go well before the first that raises")
    every: int = Field(default=1, ge=1, description="from then on, each n-th call raises")
    count: int | None = Field(default=None, ge=0, description="how many calls raise; None: all")
    rank: int | None = Field(default=None, description="only on this rank; None: on all")
    hostile: bool = Field(default=False, description="the exception's own methods raise, too")


class GarbageOptions(Options):
    """The faults of the drafts, in turn, one per step; "none" is a valid draft."""

    kinds: tuple[Kind | Literal["none"], ...] = ("range", "negative", "nan", "length", "source", "padding")


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
    token_budget: int | None = Field(default=None, ge=0)


class LearnerOptions(Options):
    """The assumptions of the policy."""

    share: float = Field(default=0.1, ge=0, description="what verifying a token costs, as a share of a step")
