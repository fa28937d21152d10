"""Numbers of owners: whose responses, or whose group, a token of the ring belongs to."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

MOST_NUMBERS = 1 << 30
MOST_KEYS = 1 << 16


class Owner(NamedTuple):
    """A key's number, and how many responses have been entered under it."""

    number: int
    responses: int = 0


class Owners:
    """Hands out numbers from 1, of which none is used twice.

    Of more than `MOST_KEYS` keys, those that were not used for longest are forgotten: nobody has their numbers again,
    so their responses are lost to them and to all others.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Owner] = OrderedDict()
        self._newest = 0

    @property
    def are_used_up(self) -> bool:
        """Whether no number is left; then forget all responses and groups, and call `restart`."""
        return self._newest >= MOST_NUMBERS

    def restart(self) -> None:
        """Forget all keys, and begin again at 1."""
        self._by_key.clear()
        self._newest = 0

    def new(self) -> int:
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
            owner = Owner(self.new())
            self._by_key[key] = owner
            if len(self._by_key) > MOST_KEYS:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        return owner
