"""Fault containment: a plug-in that misbehaves loses its drafts but never stops the engine.

`FaultGuard` is a circuit breaker per plug-in.  Every fault is counted, and the first of its kind is logged with the
plug-in's name.  After `max_consecutive` faults in a row the plug-in sits out `cooldown_steps` steps and is then given
one step on trial: a success switches it on for good, a fault switches it off again.

With several ranks, an exception or a missed deadline may happen on only one of them, and drafts that differ by rank
give silently wrong text.  So rank 0 drafts and sends its drafts to the others; where each rank drafts, a fault ends the
process and with it the engine.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from specplug.errors import ContractError, describe, drop_traceback, ends_process, text_of, traceback_of

logger = logging.getLogger("specplug")

FaultSink = Callable[[str, str], None]

KINDS = ("raised", "malformed", "late", "switched off", "came back")
"""What is counted of a plug-in."""


class LateDraft(Exception):
    """A host proposer missed its deadline, or is still busy with a step whose deadline it missed."""


def end_process(what: str) -> NoReturn:
    """Log an error and end this process, one of several ranks that each draft.

    An exception would not do: vLLM logs that of another rank than the first one, which then goes on with other drafts.
    """
    logger.critical("%s. This rank ends, as its drafts would differ from those of the other ranks", what)
    raise SystemExit(1)


def _ignore(_name: str, _kind: str) -> None:
    """Count nothing."""


class FaultGuard:
    """The circuit breaker of one plug-in.

    Args:
        name: the plug-in's name in logs and metrics.
        max_consecutive: number of consecutive faults that switch it off.
        cooldown_steps: number of steps that it skips before each trial.
        sink: called with (name, kind) at every fault and switch, for metrics.
        contains: whether faults are contained; if not, the first one ends the process.
    """

    def __init__(
        self,
        name: str,
        *,
        max_consecutive: int = 3,
        cooldown_steps: int = 64,
        sink: FaultSink = _ignore,
        contains: bool = True,
    ) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._max_consecutive = max_consecutive
        self._cooldown_steps = cooldown_steps
        self._sink = sink
        self._contains = contains
        self._in_a_row = 0
        self._cooldown_left = 0
        self._on_trial = False
        self._logged: set[str] = set()

    @property
    def is_off(self) -> bool:
        """True while the plug-in is switched off."""
        return self._cooldown_left > 0

    def admits_step(self) -> bool:
        """Return whether the plug-in may run in this step.  Call once per engine step: it counts the cool-down."""
        if self._cooldown_left == 0:
            return True
        self._cooldown_left -= 1
        return False

    def step(self, action: Callable[[], None]) -> bool:
        """Run the plug-in's main work of one step; return whether it succeeded.  A success resets the fault count."""
        succeeded = self.call(action)
        if succeeded:
            self._in_a_row = 0
            if self._on_trial:
                self._on_trial = False
                self._note("came back", "it works again and is switched on")
        return succeeded

    def call(self, action: Callable[[], None]) -> bool:
        """Run any other action; return whether it succeeded.  Only exceptions that end the process propagate."""
        try:
            action()
        except BaseException as error:
            if ends_process(error):
                raise
            kind = type(error)  # the exception's own `__class__` may raise
            if issubclass(kind, LateDraft):
                self._fault("late", f"its draft is late, since {text_of(error)}")
            elif issubclass(kind, ContractError):
                self._fault("malformed", text_of(error))
            else:
                self._fault("raised", f"it raised {describe(error)}", traceback_of(error))
            drop_traceback(error)
            return False
        return True

    def _fault(self, kind: str, what: str, trace: str = "") -> None:
        self._note(kind, f"{what}. This can cost speed, never the text", trace)
        if not self._contains:
            end_process(f"{self.name}: {what}")
        if self.is_off:  # it still receives events; a fault in one of them does not extend the cool-down
            return
        self._in_a_row += 1
        if self._in_a_row >= self._max_consecutive:  # a fault on trial counts too, as only a success resets it
            self._on_trial = True
            self._cooldown_left = self._cooldown_steps
            self._note("switched off", f"switched off for {self._cooldown_steps} steps after repeated faults")

    def _note(self, kind: str, what: str, trace: str = "") -> None:
        """Count the event, and log the first of its kind."""
        self.counts[kind] += 1
        self._sink(self.name, kind)
        if kind not in self._logged:
            self._logged.add(kind)
            after = f"\n{trace}" if trace else ""
            logger.warning("%s: %s (logged once, counted from now on)%s", self.name, what, after)


def status_of(name: str, plugin: Any) -> dict[str, Any]:
    """Return what a plug-in reports of itself: {"error": ...} if that fails, empty if it reports nothing.

    Engines send it between processes, so a report that is no JSON must fail here.
    """
    try:
        return dict(json.loads(json.dumps(plugin.status())))
    except BaseException as error:
        if ends_process(error):
            raise
        logger.warning("%s: status failed\n%s", name, traceback_of(error))
        return {"error": describe(error)}
