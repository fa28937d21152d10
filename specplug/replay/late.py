"""Delays that an engine imposes on decisions: plans are made early, and verdicts arrive late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from specplug.interfaces import Proposer, Trimmer
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.plan import StepPlan
from specplug.types.request import Event
from specplug.types.trim import TrimLimits
from specplug.types.verdict import Verdict


class EarlyPlans:
    """Plans that are `lag` steps old when they are used; the first one is used until a plan of that age exists."""

    def __init__(self, lag: int) -> None:
        self._plans: deque[StepPlan] = deque(maxlen=lag + 1)

    def exchange(self, plan: StepPlan) -> StepPlan:
        """Store the newest plan, and return the one for the current step."""
        self._plans.append(plan)
        return self._plans[0]


class _Delay:
    """Delays calls of an `observe` method by `lag` steps, keeping the arguments of the original step."""

    def __init__(self, observe: Callable[[BatchView, Draft, Verdict], None], lag: int) -> None:
        self._observe, self._lag = observe, lag
        self._waiting: deque[Callable[[], None]] = deque()

    def __call__(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Store copies, since later steps overwrite the arguments' memory, and forward the calls that are due."""
        mine, kept = batch.to_host(), _cloned(draft)
        counts = Verdict(**{field.name: getattr(verdict, field.name).clone() for field in fields(verdict)})
        self._waiting.append(lambda: self._observe(mine, kept, counts))
        if len(self._waiting) > self._lag:
            self._waiting.popleft()()


class LateTrimmer(Trimmer):
    """Delivers verdicts to a trim half `lag` steps late."""

    def __init__(self, trimmer: Trimmer, lag: int) -> None:
        self._trimmer, self._delay = trimmer, _Delay(trimmer.observe, lag)

    @property
    def learns(self) -> bool:
        return self._trimmer.learns

    def trim(self, draft: Draft, limits: TrimLimits) -> Draft:
        return self._trimmer.trim(draft, limits)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        self._delay(batch, draft, verdict)

    def cuts_without_budget(self, batch_size: int, draft_length: int) -> bool:
        return self._trimmer.cuts_without_budget(batch_size, draft_length)


class LateVerdicts(Proposer):
    """Delivers verdicts to a proposer `lag` steps late."""

    def __init__(self, proposer: Proposer, lag: int) -> None:
        self.proposer = proposer
        self.sources, self.draft_vocab = proposer.sources, proposer.draft_vocab
        self._delay = _Delay(proposer.observe, lag)

    def warmup(self) -> None:
        self.proposer.warmup()

    def ingest(self, batch: BatchView) -> None:
        self.proposer.ingest(batch)

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        self.proposer.propose(batch, limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        self._delay(batch, draft, verdict)

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
