"""Fault containment: a plug-in that misbehaves costs its drafts, never the engine.

`FaultGuard` is a circuit breaker per plug-in.  Each fault is counted and the first of its kind is logged with the
plug-in's name.  After `max_consecutive` faults in a row the plug-in is switched off for `cooldown_steps` steps, then
given one step on trial: a success switches it on for good, a fault switches it off again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from specplug.errors import ContractError

logger = logging.getLogger("specplug")

FaultSink = Callable[[str, str], None]


class LateDraft(Exception):
    """A host proposer missed its deadline; what it drafts is dropped."""


def _ignore(_name: str, _kind: str) -> None:
    """Count nothing."""


class FaultGuard:
    """The circuit breaker of one plug-in.

    Args:
        name: the plug-in, as logs and metrics call it.
        max_consecutive: faults in a row that switch it off.
        cooldown_steps: steps that it stays off before its next trial.
        sink: called with (name, kind) at every fault and switch, for metrics.
    """

    def __init__(
        self, name: str, *, max_consecutive: int = 3, cooldown_steps: int = 64, sink: FaultSink = _ignore
    ) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._max_consecutive = max_consecutive
        self._cooldown_steps = cooldown_steps
        self._sink = sink
        self._in_a_row = 0
        self._off_for = 0
        self._logged: set[str] = set()

    @property
    def is_off(self) -> bool:
        """Whether the plug-in is switched off right now."""
        return self._off_for > 0

    def admits_step(self) -> bool:
        """Ask once per engine step whether the plug-in may run in it; counts the cool-down."""
        if self._off_for:
            self._off_for -= 1
        return self._off_for == 0

    def step(self, action: Callable[[], None]) -> bool:
        """Run the plug-in's main work of one step; a success ends a run of faults.  Returns whether it succeeded."""
        succeeded = self.call(action)
        if succeeded:
            self._succeeded()
        return succeeded

    def call(self, action: Callable[[], None]) -> bool:
        """Run any other action; return whether it succeeded.  `KeyboardInterrupt` and the like pass through."""
        try:
            action()
        except LateDraft:
            self.fault("late")
        except ContractError as error:
            self.fault("malformed", error)
        except Exception as error:
            self.fault("raised", error)
        else:
            return True
        return False

    def fault(self, kind: str, error: Exception | None = None) -> None:
        """Count a fault; log the first of its kind; switch the plug-in off when there were too many in a row."""
        self.counts[kind] += 1
        self._sink(self.name, kind)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning(
                "%s: %s%s. Its drafts of this step are dropped, the text stays right; further faults of this kind are "
                "only counted",
                self.name,
                "its draft was late" if error is None else kind,
                "" if error is None else f" {type(error).__name__}: {error}",
                exc_info=error if kind == "raised" else None,
            )
        self._in_a_row += 1
        if self._in_a_row >= self._max_consecutive:
            self._switch_off()

    def revive(self) -> None:
        """Switch the plug-in on again now."""
        self._off_for = self._in_a_row = 0

    def _switch_off(self) -> None:
        self._off_for = self._cooldown_steps
        self._in_a_row = self._max_consecutive - 1  # one more fault, on trial, switches it off again
        self.counts["switched off"] += 1
        self._sink(self.name, "switched off")
        logger.warning("%s is switched off for %d steps after repeated faults", self.name, self._cooldown_steps)

    def _succeeded(self) -> None:
        if self._in_a_row and self.counts["switched off"] > self.counts["came back"]:
            self.counts["came back"] += 1
            self._sink(self.name, "came back")
            logger.warning("%s works again and is switched on", self.name)
        self._in_a_row = 0
