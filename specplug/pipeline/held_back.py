"""Events that wait for a proposer which hangs: bounded by what runs, however many requests come and go meanwhile."""

from __future__ import annotations

from specplug.types.request import BEGINS, EngineEvent, Event, RequestEvent


class HeldBack:
    """Events in order, without those that later ones make needless.

    Of a request that began and ended here nothing is left: the proposer never hears of it, and drafts the same.  At
    most an end and a beginning are left for each slot, and one event of each kind that concerns the whole engine.
    """

    def __init__(self) -> None:
        self._events: dict[object, Event] = {}

    def add(self, event: Event) -> None:
        """Hold an event back."""
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
        """Return the events, and hold none any more."""
        events, self._events = list(self._events.values()), {}
        return events

    def _put(self, key: object, event: Event) -> None:
        self._events.pop(key, None)  # its place is that of the newest
        self._events[key] = event
