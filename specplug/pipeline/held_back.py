"""Events held back for a proposer that hangs; their number is bounded by the slots, not by the requests served."""

from __future__ import annotations

from specplug.types.request import BEGINS, EngineEvent, Event, RequestEvent


class HeldBack:
    """Events in order, without those that later events make redundant.

    A request that starts and ends while events are held back leaves no event: the proposer never sees it, which does
    not change its drafts.  At most one end and one start remain per slot, and one engine event of each kind.
    """

    def __init__(self) -> None:
        self._events: dict[object, Event] = {}

    def add(self, event: Event) -> None:
        """Add an event."""
        if isinstance(event, EngineEvent):
            self._put(event.kind, event)
            return
        begin, end = (event.slot, "begin"), (event.slot, "end")
        begun = self._events.get(begin)
        if event.kind in BEGINS:
            self._put(begin, event)
        elif isinstance(begun, RequestEvent) and begun.generation == event.generation:
            del self._events[begin]
        elif end not in self._events:  # the proposer knows of one request in a slot
            self._put(end, event)

    def take(self) -> list[Event]:
        """Return all events and clear them."""
        events, self._events = list(self._events.values()), {}
        return events

    def _put(self, key: object, event: Event) -> None:
        self._events.pop(key, None)  # reinsert it at the end
        self._events[key] = event
