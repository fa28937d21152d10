"""Owners of tokens in the ring: keys, such as isolation keys, and groups of requests that draft from each other's."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_NUMBERS = 1 << 30
MAX_KEYS = 1 << 16


class Owner(NamedTuple):
    """A key's number, and how many responses have been entered under it."""

    number: int
    responses: int = 0


class Owners:
    """Assigns numbers from 1, and never reuses one.

    Beyond `MAX_KEYS` keys the least recently used one is forgotten.  It gets another number if it comes again, so its
    earlier responses are lost.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Owner] = OrderedDict()
        self._newest = 0

    @property
    def are_used_up(self) -> bool:
        """Whether no number is left; then forget all responses and groups, and call `restart`."""
        return self._newest >= MAX_NUMBERS

    def restart(self) -> None:
        """Forget all keys, and begin again at 1."""
        self._by_key.clear()
        self._newest = 0

    def new_number(self) -> int:
        """Return a number without a key."""
        self._newest += 1
        return self._newest

    def number_of(self, key: str) -> int:
        """Return a key's number."""
        return self._owner_of(key).number

    def add_response(self, key: str) -> Owner:
        """Count a response of a key; return its number and its earlier responses."""
        owner = self._owner_of(key)
        self._by_key[key] = owner._replace(responses=owner.responses + 1)
        return owner

    def _owner_of(self, key: str) -> Owner:
        owner = self._by_key.get(key)
        if owner is None:
            owner = Owner(self.new_number())
            self._by_key[key] = owner
            if len(self._by_key) > MAX_KEYS:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        return owner


@dataclass(slots=True)
class Group:
    """Requests that run at the same time on one prompt, or that name one group; see `storage.join`.

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
