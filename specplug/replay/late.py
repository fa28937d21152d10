"""What an engine's seam does to decisions: plans are made early, and verdicts arrive late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from specplug.interfaces import Proposer
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class EarlyPlans:
    """Plans that are `lag` steps old when they are carried out; the first one serves until there is one that old."""

    def __init__(self, lag: int) -> None:
        self._plans: deque[StepPlan] = deque(maxlen=lag + 1)

    def exchange(self, plan: StepPlan) -> StepPlan:
        """Take the newest plan, and return the one for the present step."""
        self._plans.append(plan)
        return self._plans[0]


class LateVerdicts(Proposer):
    """Hands a proposer what its drafts became `lag` steps late, as of the step that it is about."""

    def __init__(self, proposer: Proposer, lag: int) -> None:
        self.proposer = proposer
        self.sources = proposer.sources
        self._lag = lag
        self._waiting: deque[Callable[[], None]] = deque()

    def warmup(self) -> None:
        self.proposer.warmup()

    def ingest(self, batch: BatchView) -> None:
        self.proposer.ingest(batch)

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        self.proposer.propose(batch, limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Keep copies, as the arguments lie in memory that later steps change, and hand over those that are due."""
        mine, kept = batch.to_host(), _cloned(draft)
        counts = Verdict(**{field.name: getattr(verdict, field.name).clone() for field in fields(verdict)})
        self._waiting.append(lambda: self.proposer.observe(mine, kept, counts))
        if len(self._waiting) > self._lag:
            self._waiting.popleft()()

    def on_event(self, event: Event) -> None:
        self.proposer.on_event(event)

    def close(self) -> None:
        self.proposer.close()


def _cloned(draft: Draft) -> Draft:
    copies: dict[str, Any] = {}
    for field in fields(draft):
        value = getattr(draft, field.name)
        copies[field.name] = value.clone() if isinstance(value, Tensor) else value
    return Draft(**copies)
