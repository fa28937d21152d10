"""What the plan half of a policy reads and returns: host figures only, at least one step old, no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StepCost:
    """One finished engine step: what it processed and how long it took, in seconds."""

    requests: int
    tokens: int
    context_tokens: int
    width: int
    seconds: float


class RequestStats(NamedTuple):
    """What is known on the host about one running request; a tuple, because one is made per request and step.

    Attributes:
        length: tokens so far, prompt included.
        room: tokens that it may still emit.
        cap: its own limit on draft tokens; None when it set none.
        verified, accepted: draft tokens verified and accepted so far, bonus excluded.
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
class StepPlan:
    """How wide the next step may speculate.

    Attributes:
        width: most draft tokens per request; 0 is plain decoding.
        token_budget: most draft tokens that the whole batch may verify; None is no limit.
        caps: most draft tokens per request id, where that is less than `width`.
    """

    width: int
    token_budget: int | None = None
    caps: Mapping[str, int] = field(default_factory=dict)

    def width_for(self, request_id: str) -> int:
        """Return the most draft tokens that this plan allows the request."""
        return min(self.width, self.caps.get(request_id, self.width))


NO_SPECULATION = StepPlan(width=0)
