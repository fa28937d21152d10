"""What the scheduler's process tells every worker with a step, beside what vLLM's own scheduler output says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specplug.types.request import EngineEventKind

_ATTRIBUTE = "specplug_notes"


@dataclass(frozen=True, slots=True)
class StepNotes:
    """One step's notes.

    Attributes:
        token_budget: most draft tokens that the batch may verify in the next step; None is no limit.
        aborted: those of the finished requests that were aborted.
        cache_salts: of the new requests that brought one.
        events: what happened to the whole engine since the step before.
    """

    token_budget: int | None = None
    aborted: tuple[str, ...] = ()
    cache_salts: Mapping[str, str] = field(default_factory=dict)
    events: tuple[EngineEventKind, ...] = ()


NO_NOTES = StepNotes()


def attach(scheduler_output: Any, notes: StepNotes) -> None:
    """Send `notes` along; they are pickled with the scheduler output where workers are other processes."""
    setattr(scheduler_output, _ATTRIBUTE, notes)


def of(scheduler_output: Any) -> StepNotes:
    """Return the notes of a step."""
    notes = getattr(scheduler_output, _ATTRIBUTE, NO_NOTES)
    assert isinstance(notes, StepNotes)
    return notes
