"""Inputs and outputs of both halves of a policy: host figures at least one step old, plans, and limits of a trim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.types.tensors import to_device


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


class RequestStats(NamedTuple):
    """Host-side figures of one running request.  A tuple, because one is created per request and step.

    Attributes:
        length: tokens so far, prompt included.
        room: tokens that it may still emit.
        cap: the request's own limit on draft tokens; None if it set none.  The pipeline enforces it, whatever the plan.
        verified, accepted: draft tokens verified and accepted so far, bonus excluded.  If the planner's process does
            not know the draft lengths (vLLM's V2 runner), padding counts as verified.
        rejected: drafts so far of which not all verified tokens were accepted.
    """

    request_id: str
    length: int
    room: int
    cap: int | None = None
    verified: int = 0
    accepted: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class HostStats:
    """The figures that a plan is made from.

    Attributes:
        step: number of the step to be planned.
        requests: the requests that decode in this step.  Read them within `plan`; engines compute the figures of single
            requests only if they are read, and their number is always cheap.
        last_step: cost of the newest step whose duration is known; None before the first.
        last_plan: the plan of the step before, with the limits of all policies and requests; None before the first.
    """

    step: int
    requests: Sequence[RequestStats]
    last_step: StepCost | None = None
    last_plan: StepPlan | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """Results of one finished step, as known in the process of the plan half.

    Attributes:
        step: the `HostStats.step` of the plan that the step's drafts followed.
        draft_length: the most draft tokens per request under that plan, as it was carried out.
        requests: number of requests that the step was planned for and that might draft.  Those with a cap of 0, their
            own or the plan's, are no evidence: no other count but `batch_size` includes them.
        batch_size: number of requests that the step was planned for.
        verified, accepted: draft tokens of all requests, counted as in `RequestStats`.  The token that ended a request
            is not among them: what clients received is one token more per request, and none after its end.
        cost: cost of the step; None if its duration is not known.
        runs: for each request with drafts, the length of its run before and after the step: the tokens that it emitted
            since a draft of it was last not accepted in full.  Empty where the engine does not plan in its scheduler.
        expected: [K] floats, what the step's drafts were expected to yield: entry k - 1 is the sum over rows of the
            probability that the target accepts the first k draft tokens.  So drafts of at most k tokens were expected
            to yield the sum of the first k entries.  It covers all K of the engine, whatever was planned.  None where
            drafts have no confidences, or none are known.
        expected_rows: number of rows that `expected` is of.
    """

    step: int
    draft_length: int
    requests: int
    batch_size: int
    verified: int
    accepted: int
    cost: StepCost | None = None
    runs: Sequence[tuple[int, int]] = ()
    expected: Sequence[float] | None = None
    expected_rows: int = 0

    @classmethod
    def build(
        cls,
        step: int,
        draft_length: int,
        requests: int,
        counts: Sequence[tuple[int, int]],
        cost: StepCost | None = None,
        runs: Sequence[tuple[int, int]] = (),
        *,
        batch_size: int | None = None,
    ) -> StepReport:
        """Sum up `counts`, the numbers of verified and accepted draft tokens of each request that might draft.

        By default all requests might.
        """
        return cls(
            step,
            draft_length,
            requests,
            requests if batch_size is None else batch_size,
            verified=sum([verified for verified, _ in counts]),
            accepted=sum([accepted for _, accepted in counts]),
            cost=cost,
            runs=runs,
        )


class Price(NamedTuple):
    """The least survival probability of draft tokens that are worth verifying.

    Attributes:
        survival: the probability, i.e. the expected accepted tokens that verifying one more token must yield.
        after: number of the batch's draft tokens, first in the order of admission, that it does not apply to.
    """

    survival: float
    after: int = 0


MOST_PRICES = 16
"""The most prices of a plan."""


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


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Limits on the drafts of the next step.

    Attributes:
        draft_length: the most draft tokens per request; 0 is plain decoding.
        token_budget: the most draft tokens that the whole batch may verify; None is no limit.
        caps: the most draft tokens by request id, for requests limited to fewer than `draft_length`.
        prices: passed to the trim half, ascending in both fields, at most `MOST_PRICES`: the more tokens a step
            verifies, the more a further one may cost.
        entry: expected accepted tokens, beyond the prices of the tokens, that a step's drafts have to yield, or none
            is verified: what it costs to verify any.
        costs: the cost curve, ascending in `draft_tokens`, at most `MAX_COST_POINTS`; linear between two points and
            constant beyond the ends.  It may jump, fall or be flat.  The trim half keeps the draft tokens whose summed
            survival probabilities exceed their cost by most.  Without points no token costs anything.
        num_steps: number of steps that a plan without drafts is for, while as many requests decode.  Engines then need
            not call the planner, time the steps or report them until that many have been planned.
        why: why there are no drafts, in a few words for traces; "" says no more than that none are planned.
    """

    draft_length: int
    token_budget: int | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    prices: tuple[Price, ...] = ()
    entry: float = 0.0
    costs: tuple[CostPoint, ...] = ()
    num_steps: int = 1
    why: str = field(default="", compare=False)

    def draft_length_for(self, request_id: str) -> int:
        """Return the most draft tokens that this plan allows the request."""
        return min(self.draft_length, self.caps.get(request_id, self.draft_length))

    def takes_none(self, request_id: str) -> bool:
        """Return whether the request could not draft under this plan, so that its step is no evidence."""
        return not self.draft_length_for(request_id)

    def budget_of(self, places: int) -> int:
        """Return the token budget of a batch whose drafts have so many places."""
        return places if self.token_budget is None else min(max(0, self.token_budget), places)


NO_SPECULATION = StepPlan(draft_length=0)


@dataclass(frozen=True, slots=True, eq=False)
class TrimLimits:
    """The bounds of one step, all on the device of the drafts.

    Attributes:
        token_budget: 0-d int64, the most draft tokens of the whole batch; at least 0.
        decoding: [B] bool, rows that emit in the step.
        prices, prices_after: [P] float32 and [P] int64, the `StepPlan.prices`, both ascending.  A token is not worth
            verifying if at least `prices_after[i]` tokens precede it and its survival probability is below `prices[i]`.
        entry: `StepPlan.entry`.  No token is worth verifying if the survival probabilities of those within the budget
            and the prices exceed their prices by less than this in all.
    """

    token_budget: Tensor
    decoding: Tensor
    prices: Tensor
    prices_after: Tensor
    entry: float = 0.0

    @classmethod
    def build(cls, token_budget: int, decoding: Tensor, prices: Sequence[Price] = (), entry: float = 0.0) -> TrimLimits:
        """Move host values to the device of `decoding` [B] bool, without waiting for the device."""
        device = decoding.device
        budget = torch.full((), token_budget, dtype=torch.int64, device=device)
        return cls(budget, decoding, *_moved(tuple(prices), device), entry)


@lru_cache(maxsize=64)
def _moved(prices: tuple[Price, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the fields of prices on a device; plans keep their prices for several steps, and nobody writes to them."""
    after = torch.tensor([price.after for price in prices], dtype=torch.int64)
    survival = torch.tensor([price.survival for price in prices], dtype=torch.float32)
    on_device = to_device([survival, after], device)
    return on_device[0], on_device[1]
