"""What the plan half of a policy reads, returns and learns from: host figures only, at least one step old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one finished engine step processed, and how long it took.  docs/writing-policies.md says more per engine.

    Attributes:
        requests: those that the target ran.
        tokens: tokens that the target ran, padding of drafts and prompt tokens of the same step included.
        context_tokens: tokens of the decoding requests, as the plan half knew them.
        draft_length: most draft tokens of a request.
        seconds: wall-clock time on the host of the process that plans.
    """

    requests: int
    tokens: int
    context_tokens: int
    draft_length: int
    seconds: float


class RequestStats(NamedTuple):
    """What is known on the host about one running request; a tuple, because one is made per request and step.

    Attributes:
        length: tokens so far, prompt included.
        room: tokens that it may still emit.
        cap: its own limit on draft tokens; None when it set none.
        verified, accepted: draft tokens verified and accepted so far, bonus excluded.  Where the planner's process
            does not know how long drafts were (vLLM's V2 runner), padding counts as verified.
    """

    request_id: str
    length: int
    room: int
    cap: int | None = None
    verified: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class HostStats:
    """The figures that a plan is made from.

    Attributes:
        step: number of the step to be planned.
        requests: those that decode in this step.
        num_waiting: requests that wait for a slot.
        prefill_tokens: prompt tokens that share this step.
        last_step: cost of the newest step whose time is known; None at first.
    """

    step: int
    requests: tuple[RequestStats, ...]
    num_waiting: int = 0
    prefill_tokens: int = 0
    last_step: StepCost | None = None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What became of one finished step, as the process of the plan half knows it.

    Attributes:
        step: the plan that shaped its drafts, by `HostStats.step`.
        draft_length: most draft tokens per request by that plan, as it was carried out.
        requests: those that it was planned for.
        verified, accepted: draft tokens of all requests, as `RequestStats` counts them.
        tested_at: by position in the draft, requests whose token there was decided: accepted, or the first rejected.
            Tokens after a rejection are undecided.  Of trees, whose nodes have no positions, not to be used.
        accepted_at: by position, or depth in a tree, requests whose token there was accepted.
        cost: of the step; None where its time is not known.
    """

    step: int
    draft_length: int
    requests: int
    verified: int
    accepted: int
    tested_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    cost: StepCost | None = None

    @classmethod
    def build(
        cls, step: int, draft_length: int, requests: int, fates: Sequence[tuple[int, int]], cost: StepCost | None = None
    ) -> StepReport:
        """Sum up `fates`, per request the draft tokens verified and accepted."""
        tested = [min(accepted + 1, verified) for verified, accepted in fates]
        return cls(
            step,
            draft_length,
            requests,
            verified=sum(verified for verified, _ in fates),
            accepted=sum(accepted for _, accepted in fates),
            tested_at=tuple(sum(count > place for count in tested) for place in range(draft_length)),
            accepted_at=tuple(sum(count > place for _, count in fates) for place in range(draft_length)),
            cost=cost,
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """How wide the next step may speculate.

    Attributes:
        draft_length: most draft tokens per request; 0 is plain decoding.
        token_budget: most draft tokens that the whole batch may verify; None is no limit.
        caps: most draft tokens per request id, where that is less than `draft_length`.
        price: handed to the trim half: expected accepted tokens below which verifying a draft token does not pay; 0 is
            no price.
    """

    draft_length: int
    token_budget: int | None = None
    caps: Mapping[str, int] = field(default_factory=dict)
    price: float = 0.0

    def draft_length_for(self, request_id: str) -> int:
        """Return the most draft tokens that this plan allows the request."""
        return min(self.draft_length, self.caps.get(request_id, self.draft_length))


NO_SPECULATION = StepPlan(draft_length=0)
