"""What a draft model's drafts are worth, in accepted tokens, and what they cost, in seconds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_OPTIMISM = 2.0  # accepted tokens of a draft, before any is known
_GIVEN = 4.0  # drafts that what all requests had counts for in one request
_FORGET = 64.0  # drafts of a request, and _FORGET ** 2 of all, after which older ones count half
_SMOOTH = 0.1  # the weight of a new time
_GAP = 4.0  # a time so many times the usual one is a pause, not a step, unless it follows another one


class Drafted(NamedTuple):
    """Drafts and their accepted tokens."""

    drafts: float
    accepted: float

    def plus(self, accepted: int, most: float) -> Drafted:
        """Return the counts with one more draft."""
        found = Drafted(self.drafts + 1, self.accepted + accepted)
        return Drafted(found.drafts / 2, found.accepted / 2) if found.drafts > most else found


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
        return np.array([(it.accepted + _GIVEN * common) / (it.drafts + _GIVEN) for it in own])

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
