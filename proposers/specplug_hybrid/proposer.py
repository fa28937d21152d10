"""The proposer `hybrid`: lookup and a draft model under one decision, by what the model's drafts are worth and cost."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from specplug.composing import ComposedProposer, splice
from specplug.interfaces import PluginContext
from specplug.types.request import BEGINS, Event, RequestEvent
from specplug.types.step import Draft, EngineBatch, Verdict

Floats = npt.NDArray[np.float64]

_OPTIMISM = 2.0  # accepted tokens of a draft, before any is known
_PRIOR = 4.0  # drafts that what all requests had counts for in one request
_FORGET = 64.0  # drafts of a request, and _FORGET ** 2 of all, after which older ones count half
_SMOOTH = 0.1  # the weight of a new time
_GAP = 4.0  # a time so many times the usual one is a pause, not a step, unless it follows another one


class Drafted(NamedTuple):
    """Drafts and their accepted tokens."""

    drafts: float
    accepted: float

    def plus(self, accepted: int, limit: float) -> Drafted:
        """Return the counts with one more draft."""
        found = Drafted(self.drafts + 1, self.accepted + accepted)
        return Drafted(found.drafts / 2, found.accepted / 2) if found.drafts > limit else found


class Gains:
    """Learns how many tokens of the model's drafts are accepted, by request, and the times of steps and the model."""

    def __init__(self) -> None:
        self._all = Drafted(1.0, _OPTIMISM)
        self._by_slot: dict[int, Drafted] = {}
        self._paused = False
        self.step_seconds = self.model_seconds = 0.0
        """Smoothed times of a step without the model, and of the model; 0 while unknown."""

    def learn(self, slot: int, accepted: int) -> None:
        """Learn from the verdict on one of the model's drafts."""
        self._all = self._all.plus(accepted, _FORGET**2)
        self._by_slot[slot] = self._by_slot.get(slot, Drafted(0.0, 0.0)).plus(accepted, _FORGET)

    def forget(self, slot: int) -> None:
        """Forget the request in a slot."""
        self._by_slot.pop(slot, None)

    def expected(self, slots: list[int]) -> Floats:
        """Return [B], the accepted tokens that the model's next drafts are expected to have."""
        common = self._all.accepted / self._all.drafts
        own = [self._by_slot.get(slot, Drafted(0.0, 0.0)) for slot in slots]
        return np.array([(it.accepted + _PRIOR * common) / (it.drafts + _PRIOR) for it in own])

    def time_step(self, seconds: float) -> None:
        """Note the time from one step to the next, without the model's."""
        is_long = self.step_seconds > 0 and seconds >= _GAP * self.step_seconds
        self._paused = is_long and not self._paused
        if not self._paused:
            self.step_seconds = _smoothed(self.step_seconds, seconds)

    def time_model(self, seconds: float) -> None:
        """Note the time that the model has taken for a batch."""
        self.model_seconds = _smoothed(self.model_seconds, seconds)

    def pays(self, batch_size: int, without: float, more: float) -> bool:
        """Return whether a step with the model emits more per second than one without it.

        Args:
            batch_size: requests, each of which emits a token in any case.
            without: tokens of all lookup's drafts that are expected to be accepted.
            more: how many more with the model's drafts.
        """
        if not self.step_seconds or not self.model_seconds:
            return more > 0
        return more * self.step_seconds > (batch_size + without) * self.model_seconds


def _smoothed(old: float, new: float) -> float:
    return new if not old else old + _SMOOTH * (new - old)


class HybridSettings(BaseModel):
    """The two proposers; each takes its own settings under `options.<name>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lookup: str = Field(default="ngram", description="the proposer that looks drafts up, which costs next to nothing")
    model: str = Field(
        default="crosstok",
        description="the proposer that runs a model; 'engine' is the engine's own drafter, whose drafts lookup "
        "continues",
    )
    model_tokens: int = Field(
        default=3, ge=1, description="the tokens that the engine's own drafter drafts, if it is the model"
    )


LOOKUP, MODEL = range(2)
_TRIED_EVERY = 64  # steps after which the model is tried again although it does not pay


class Hybrid(ComposedProposer):
    """Drafts by lookup where that is expected to have more tokens accepted, and by a model elsewhere.

    Lookup drafts first, for all rows.  What the model's drafts are worth is learnt from verdicts.  It runs for the rows
    that gain by it if the batch then emits more per second, by the measured times of its own steps and the target's;
    otherwise none of its steps run.  Where lookup's draft begins with all of the model's and is longer, its rest
    follows the model's draft.  Which rows the model drafts for does not depend on its drafts, so those that it draws
    state their logits.
    """

    def __init__(self, context: PluginContext) -> None:
        options: HybridSettings = context.options or HybridSettings()
        super().__init__(context, [options.lookup, options.model], stating=MODEL)
        self._first_of_model = len(self.parts[LOOKUP].sources)
        self.gains = Gains()
        self._began = self._in_model = 0.0
        self._running: frozenset[tuple[int, int]] = frozenset()  # slots and generations of the step before
        self._skipped = self._steps = self._steps_with_model = 0

    def compose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Draft by lookup, and by the model for the rows that `_rows_for_model` returns."""
        now = time.monotonic()
        running = frozenset(zip(batch.slots.tolist(), batch.generations.tolist(), strict=True))
        if not running.isdisjoint(self._running):  # else the engine may have had nothing to do
            self.gains.time_step(now - self._began - self._in_model)
        self._began = now
        self._running = running
        self._in_model = 0.0
        self._steps = self._steps + 1
        found = self.part_draft(LOOKUP, batch, limits, draft.draft_length)
        rows = self._rows_for_model(batch, limits, found)
        if rows is None:
            self._skipped += 1
            self.parts[MODEL].ingest(batch)
        else:
            self._skipped = 0
            self._steps_with_model = self._steps_with_model + 1
            began = time.monotonic()
            drafted = self.part_draft(MODEL, batch, torch.where(rows, limits, 0), draft.draft_length)
            self._in_model = time.monotonic() - began
            self.gains.time_model(self._in_model)
            splice(draft, drafted)
        splice(draft, found)

    def _rows_for_model(self, batch: EngineBatch, limits: Tensor, found: Draft) -> Tensor | None:
        """Return [B] bool, the rows that gain by the model; None if it should not run."""
        by_lookup = found.survival().sum(1).double().numpy()
        by_model = np.minimum(self.gains.expected(batch.slots.tolist()), limits.numpy())
        rows = by_model > by_lookup
        more = float((by_model - by_lookup)[rows].sum())
        if not rows.any():
            return None
        if self.gains.pays(len(rows), float(by_lookup.sum()), more) or self._skipped >= _TRIED_EVERY:
            return torch.from_numpy(rows)
        return None

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Let the parts learn, and learn what the model's drafts were worth."""
        super().observe(batch, draft, verdict)
        by_model = (draft.source >= self._first_of_model).sum(1)
        is_verified = (by_model > 0) & (verdict.verified > 0)
        accepted = torch.minimum(by_model, verdict.accepted)
        rows = zip(batch.slots.tolist(), is_verified.tolist(), accepted.tolist(), strict=True)
        for slot, is_model, count in rows:
            if is_model:
                self.gains.learn(slot, count)

    def on_event(self, event: Event) -> None:
        """Pass the event to the parts, and forget a request that has left its slot."""
        super().on_event(event)
        if isinstance(event, RequestEvent) and event.kind not in BEGINS:
            self.gains.forget(event.slot)

    def status(self) -> dict[str, Any]:
        """Return the parts' statuses, and how often the model ran."""
        own = {
            "steps": self._steps,
            "steps_with_model": self._steps_with_model,
            "step_ms": round(1000 * self.gains.step_seconds, 3),
            "model_ms": round(1000 * self.gains.model_seconds, 3),
        }
        return {**super().status(), "hybrid": own}
