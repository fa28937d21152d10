"""One step as deciders see it: the requests that decode, what they verified, and the interface of deciders."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from benchmarks.simulate.modes import launch
from benchmarks.simulate.surface import Regime, StepWork
from benchmarks.simulate.trajectories import Array, Drafts
from specplug.types.plan import StepPlan


class Row:
    """A request that decodes.

    Attributes:
        request_id: its id.
        index: its index in the traffic.
    """

    __slots__ = ("_lengths", "index", "request_id")

    def __init__(self, request_id: str, index: int, lengths: Array) -> None:
        self.request_id, self.index, self._lengths = request_id, index, lengths

    @property
    def length(self) -> int:
        """Tokens so far, prompt included."""
        return int(self._lengths[self.index])


class StepView(NamedTuple):
    """What is known when a step begins.

    Attributes:
        rows: the B requests that decode.
        indices: [B] int64, their indices in the traffic.
        entries: [B] int64, their positions' entries in the trajectories.
        lengths: [B] int64, their tokens so far, prompts and cached context included.
        num_waiting: requests that wait for a slot.
        prefill_tokens, prefill_pairs: prompt tokens of the step, see `StepWork`.
        missed: tokens that the proposer has not ingested.
        previous: draft length of the step before.
    """

    rows: list[Row]
    indices: Array
    entries: Array
    lengths: Array
    num_waiting: int
    prefill_tokens: int
    prefill_pairs: int
    missed: int
    previous: int

    @property
    def context_tokens(self) -> int:
        """The rows' tokens so far, in all."""
        return int(self.lengths.sum())

    def work(self, tokens: int, captured: Regime, draft_length: int) -> StepWork:
        """Return the work of the step if its rows verify so many tokens; see `Mode.charge`."""
        padded, regime = launch(tokens, captured, self.prefill_tokens)
        return StepWork(
            len(self.rows),
            padded,
            self.context_tokens,
            draft_length,
            regime,
            self.prefill_tokens,
            self.prefill_pairs,
            changed=bool(self.rows) and draft_length != self.previous,
            missed=self.missed,
        )


class StepResult(NamedTuple):
    """What a step did.

    Attributes:
        kept, accepted, emitted: [B] int64, draft tokens of each row verified, padding excluded, and accepted; tokens
            emitted.
        tokens: tokens that the target ran, prompt tokens and padding of rows included.
        draft_length: draft length that was verified.
        began, ended: simulated seconds.
    """

    kept: Array
    accepted: Array
    emitted: Array
    tokens: int
    draft_length: int
    began: float
    ended: float


class Decider(Protocol):
    """What chooses the drafts: a policy, or the clairvoyant."""

    @property
    def faults(self) -> dict[str, int]: ...

    def plan(self, view: StepView) -> StepPlan:
        """Return the plan of the drafts that this step verifies."""

    def keep(self, view: StepView, drafts: Drafts, plan: StepPlan) -> Array:
        """Return [B] int64, the length that each row's draft is cut to."""

    def observe(self, view: StepView, result: StepResult) -> None:
        """Learn from a step."""

    def forget(self, request_ids: list[str]) -> None:
        """Drop what is known of requests that have ended."""
