"""Siblings on the host: which slots draft from each other's tokens; see `storage.join` and `storage.leave`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Group:
    """Requests that run at the same time on one prompt, or that name one group.

    Attributes:
        number: the owner number of what they share; 0 while there has been only one request.
        joined: how many requests have shared tokens so far.
        slots: the slots of those that run, in order of arrival.
    """

    number: int = 0
    joined: int = 0
    slots: list[int] = field(default_factory=list)


class Groups:
    """The groups of running requests, by key.  One request alone shares nothing, and takes no room in the ring."""

    def __init__(self) -> None:
        self._by_key: dict[str, Group] = {}
        self._key_of: dict[int, str] = {}

    def add(self, slot: int, key: str) -> None:
        """Add the request in a slot."""
        self._by_key.setdefault(key, Group()).slots.append(slot)
        self._key_of[slot] = key

    def of(self, slot: int) -> Group:
        """Return the group of the request in a slot; it must be in one."""
        return self._by_key[self._key_of[slot]]

    def remove(self, slot: int) -> bool:
        """Remove the request in a slot, if it is in a group; return whether it shares tokens."""
        key = self._key_of.pop(slot, None)
        if key is None:
            return False
        group = self._by_key[key]
        group.slots.remove(slot)
        if not group.slots:
            del self._by_key[key]
        return group.number > 0

    def sharing_groups(self) -> list[Group]:
        """Return the groups whose requests share tokens."""
        return [group for group in self._by_key.values() if group.number]
