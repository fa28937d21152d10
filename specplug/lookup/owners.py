"""Numbers of owners: an owner of a token in the ring is a key, such as an isolation key, or a group."""

from __future__ import annotations

from collections import OrderedDict
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
