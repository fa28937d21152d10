"""One engine step in five nouns, and what a runner keeps of a step in flight.

    StepPlan   ->   Draft  ->  Outcome  ->  Verdict
    (host)          (of an EngineBatch, on the engine's device)

A `StepPlan` limits the drafts of an `EngineBatch`.  The `Draft` of its rows is verified, and the engine reports an
`Outcome`; joined with the draft it becomes the `Verdict` that plug-ins learn from.  A runner keeps a `StepRecord` of
each step whose results are pending.  The two large ones are in `specplug.types.batch` and `specplug.types.draft`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft

__all__ = [
    "MAX_COST_POINTS",
    "MAX_DRAFT_TOKENS",
    "NO_SPECULATION",
    "CostPoint",
    "Draft",
    "EngineBatch",
    "Outcome",
    "StepCost",
    "StepPlan",
    "StepRecord",
    "Verdict",
    "until_stop",
]


class CostPoint(NamedTuple):
    """A point of a plan's cost curve.

    Attributes:
        draft_tokens: draft tokens that the whole batch verifies in the step.
        cost: accepted tokens that the server would lose by the time that these add to a step without drafts.
    """

    draft_tokens: int
    cost: float


MAX_COST_POINTS = 64
"""The most points of a plan's cost curve."""

MAX_DRAFT_TOKENS = 1 << 18
"""The most draft tokens of a point."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Limits on the drafts of the next step.

    Attributes:
        draft_length: the most draft tokens per request; 0 is plain decoding.
        token_budget: the most draft tokens that the whole batch may verify; None is no limit.
        caps: the most draft tokens by request id, for requests limited to fewer than `draft_length`.
        costs: the cost curve, ascending in `draft_tokens`, at most `MAX_COST_POINTS`; linear between two points and
            constant beyond the ends.  It may jump, fall or be flat.  The trim half keeps the draft tokens whose summed
            survival probabilities exceed their cost by most.  Without points no token costs anything.
        num_steps: number of steps that the plan is for.  Engines then need not call the planner until that many have
            been planned, or the requests that decode or the operator's limit change.  Without drafts only the number of
            requests matters, and these steps need neither be timed nor reported.  Drafts with caps hold for one.
        why: why there are no drafts, in a few words for traces; "" says no more than that none are planned.
    """

    draft_length: int
    token_budget: int | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    costs: tuple[CostPoint, ...] = ()
    num_steps: int = 1
    why: str = field(default="", compare=False)

    def draft_length_for(self, request_id: str) -> int:
        """Return the most draft tokens that this plan allows the request."""
        return min(self.draft_length, self.caps.get(request_id, self.draft_length))

    def takes_none(self, request_id: str) -> bool:
        """Return whether the request could not draft under this plan, so that its step is no evidence."""
        return self.draft_length_for(request_id) == 0

    def budget_of(self, places: int) -> int:
        """Return the token budget of a batch whose drafts have so many places."""
        return places if self.token_budget is None else min(max(0, self.token_budget), places)


NO_SPECULATION = StepPlan(draft_length=0)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An engine's report after a step, for each row of the batch that was verified.

    Attributes:
        verified: [B] int32, draft tokens that the engine put through the target, padding included.
        accepted: [B] int32, draft tokens that it accepted, bonus excluded, padding included.
        emitted: [B] int32, tokens appended to the request, bonus or recovered token included; 0 for prefill chunks.
        cut_by_grammar: [B] int32, draft tokens that a grammar removed before verification; None when not known.
        after_stop: [B] int32, emitted tokens after a stop, which no client sees; None when not known.
        forced: chains that grammars drafted after the proposers' drafts, also counted in `verified` and `accepted`;
            None for none.
    """

    verified: Tensor
    accepted: Tensor
    emitted: Tensor
    cut_by_grammar: Tensor | None = None
    after_stop: Tensor | None = None
    forced: Draft | None = None

    def discarded(self) -> Tensor:
        """Return [B] bool, true for rows whose request had ended before the step: the engine drops all their tokens.

        The step that reaches a request's end is not one of them: it emits the end itself, which is not after the stop.
        """
        if self.after_stop is None:
            return torch.zeros_like(self.emitted, dtype=torch.bool)
        return (self.emitted > 0) & (self.after_stop >= self.emitted)

    def until_stop(self) -> tuple[Tensor, Tensor]:
        """Return `verified` and `accepted` without the tokens after a stop, [B] int32 each.

        The token that ends a row counts as the one that any step emits, also if it was drafted: what clients receive of
        a step is one token more than its accepted ones.
        """
        if self.after_stop is None:
            return self.verified, self.accepted
        before = (self.emitted - self.after_stop - 1).clamp(min=0)
        verified = torch.where(self.after_stop > 0, torch.minimum(self.verified, before), self.verified)
        return verified, torch.minimum(self.accepted, verified)


def until_stop(verified: int, accepted: int, received: int) -> tuple[int, int]:
    """Return what `Outcome.until_stop` does for one row, of which a client received so many tokens, on the host."""
    return (verified, accepted) if received > accepted else (received - 1, received - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The result of each row's draft; all tensors are [B] int32 on the engine's device.

    Rejected, never verified and cut by grammar are three different results: of `proposed` tokens, `verified` went
    through the target; of those, `accepted` were kept and at most one more was rejected.  A token after the first
    rejection, a trimmed token and a token cut by a grammar are censored: they say nothing about their confidence.

    A row whose request had ended before the step counts as having no draft: the engine discards its tokens.  A draft
    that reaches beyond the end counts as far as the token that ends the request, see `Outcome.until_stop`.

    Attributes:
        proposed: draft tokens that the proposer wrote and the trim step kept.
        verified: proposed tokens that went through the target, up to the request's end.
        accepted: min(the engine's count, the real draft length); the engine can also accept padding, which is not
            counted.
        cut_by_grammar: proposed tokens that a grammar removed before verification.
        emitted: tokens appended to the request, bonus or recovered token included.
        after_stop: emitted tokens after a stop.  No client sees them; do not learn from them.
    """

    proposed: Tensor
    verified: Tensor
    accepted: Tensor
    cut_by_grammar: Tensor
    emitted: Tensor
    after_stop: Tensor

    @classmethod
    def build(cls, proposed: Tensor, outcome: Outcome) -> Verdict:
        """Join the draft lengths `proposed` [B] int32 with the engine's report.  Reads nothing back."""
        zero = torch.zeros_like(proposed)
        if outcome.after_stop is not None:
            proposed = torch.where(outcome.discarded(), zero, proposed)
        cut = zero if outcome.cut_by_grammar is None else torch.minimum(outcome.cut_by_grammar, proposed)
        verified, accepted = outcome.until_stop()
        verified = torch.minimum(verified, proposed if cut is zero else proposed - cut)
        return cls(
            proposed=proposed,
            verified=verified,
            accepted=torch.minimum(accepted, verified),
            cut_by_grammar=cut,
            emitted=outcome.emitted,
            after_stop=zero if outcome.after_stop is None else outcome.after_stop,
        )

    @classmethod
    def of_nothing(cls, outcome: Outcome) -> Verdict:
        """Return the verdict of `build` for empty drafts."""
        zero = torch.zeros_like(outcome.emitted)
        after = zero if outcome.after_stop is None else outcome.after_stop
        return cls(zero, zero, zero, zero, emitted=outcome.emitted, after_stop=after)

    def tested(self) -> Tensor:
        """Return [B] int32: draft tokens whose acceptance was decided, i.e. `accepted` and the first rejected one."""
        return torch.minimum(self.accepted + 1, self.verified)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Work and duration of one finished engine step.  docs/writing-plugins.md has the details for each engine.

    Attributes:
        requests: number of requests that the target ran.
        tokens: tokens that the target ran, including draft padding and prompt tokens of the same step.
        context_tokens: context tokens of the decoding requests before the step, as the plan half knew them.
        draft_length: the most draft tokens that any request might have, by the plan.
        seconds: wall-clock time on the host, in the process that plans.
        prompt_tokens: prompt tokens among `tokens`: what was run beyond one token per request and the draft tokens.
        drafting_seconds: of `seconds`, those in which drafts were made and the target waited for them; None if the
            process that plans cannot tell.
    """

    requests: int
    tokens: int
    context_tokens: int
    draft_length: int
    seconds: float
    prompt_tokens: int = 0
    drafting_seconds: float | None = None


class StepRecord(NamedTuple):
    """A step that the engine has begun and whose results are pending.

    Attributes:
        plan: the plan of the drafts that it verifies.
        step, requests, batch_size: of that plan, see `StepReport`; `step` is -1 if the step is not to be reported.
        began: start time in seconds.
        cost: its cost, of 0 seconds; None if it is not timed.
        rows: what the runner keeps of the engine's rows until their results arrive.
    """

    plan: StepPlan = NO_SPECULATION
    step: int = -1
    requests: int = 0
    batch_size: int = 0
    began: float = 0.0
    cost: StepCost | None = None
    rows: Sequence[Any] = ()

    def verifying(self, count: int) -> StepRecord:
        """Return the step with `count` draft tokens in place of those it was launched with, if it is timed."""
        if self.cost is None:
            return self
        return self._replace(cost=replace(self.cost, tokens=self.cost.requests + self.cost.prompt_tokens + count))
