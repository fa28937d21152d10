"""A proposer that records its calls, for tests that run in its process."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from specplug.types.request import Event, RequestEvent
from specplug.types.step import Draft, EngineBatch, Verdict
from specplug_ngram.reference import NgramReference

RECORDS: list[dict[str, Any]] = []
"""What all recorders of this process were told, in order; JSON values."""


class Recorder(NgramReference):
    """Drafts like `ngram`.

    A record has a "call": "ingest" (the batch, with "texts", each row's tokens), "observe" (also "verdict") or "event"
    ("kind", and of a request "request_id", "slot", "generation", "visible", "request").
    """

    def ingest(self, batch: EngineBatch) -> None:
        super().ingest(batch)
        self._note("ingest", **described(batch), texts=texts_of(batch))

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        reported = {name: getattr(verdict, name).tolist() for name in verdict.__dataclass_fields__}
        self._note("observe", **described(batch), texts=texts_of(batch), verdict=reported)

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if isinstance(event, RequestEvent):
            request = event.request
            reported = {
                "request_id": request.request_id,
                "slot": event.slot,
                "generation": event.generation,
                "visible": event.visible,
                "request": {"isolation_key": request.isolation_key},
            }
            self._note("event", kind=event.kind.name, **reported)
        else:
            self._note("event", kind=event.kind)

    def _note(self, call: str, **reported: Any) -> None:
        RECORDS.append({"call": call, **reported})


def texts_of(batch: EngineBatch) -> list[list[int]]:
    """Return each row's tokens."""
    rows = zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True)
    return [batch.tokens[row, :length].tolist() for row, length in rows]


def described(batch: EngineBatch) -> dict[str, Any]:
    """Return a batch's host and per-row fields."""
    names = ("slots", "generations", "lengths", "num_new")
    return {
        **{name: getattr(batch, name).tolist() for name in names},
        "reset_slots": list(batch.reset_slots),
        "barriers": [asdict(barrier) for barrier in batch.barriers],
        "request_ids": None if batch.request_ids is None else list(batch.request_ids),
        "is_dummy": batch.is_dummy,
    }
