"""A ring of objects that steps in flight write to, such as buffers in pinned memory: one per step in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from specplug.errors import ContractError
from specplug.pipeline.stream.launch import Mark

T = TypeVar("T")


class Ring(Generic[T]):
    """Objects of which each is in use from `take` until the mark that it was given back with is reached.

    Nothing waits: when no object is free, `take` makes another.  An object that is taken and never given back, because
    the step raised, is not used again.  The ring keeps all objects that it has made, so keep it as long as the process:
    the device and host functions write to them until their marks are reached.  One thread uses it.

    Args:
        make: returns a new object.
        finish: called with each object once per use, in the order of use, after its mark is reached and before it is
            taken again; what the step left in it can be read there.
    """

    def __init__(self, make: Callable[[], T], finish: Callable[[T], None] | None = None) -> None:
        self._make, self._finish = make, finish
        self._objects: list[T] = []
        self._free: list[T] = []
        self._taken: dict[int, T] = {}
        self._pending: deque[tuple[T, Mark]] = deque()

    def __len__(self) -> int:
        """The number of objects made so far."""
        return len(self._objects)

    @property
    def taken(self) -> list[T]:
        """The objects that are taken and not given back."""
        return list(self._taken.values())

    def take(self) -> T:
        """Return an object that is free, or a new one."""
        self.collect()
        if self._free:
            item = self._free.pop()  # the one used last: its memory is likely in the caches
        else:
            item = self._make()
            self._objects.append(item)
        self._taken[id(item)] = item
        return item

    def give_back(self, item: T, mark: Mark) -> None:
        """Give an object back: it is free once `mark`, recorded after the last work on it, is reached.

        Raises:
            ContractError: the object is not taken.
        """
        if self._taken.pop(id(item), None) is None:
            raise ContractError.build(
                "an object was given back to a ring", found="one that is not taken", expected="one from `take`, once"
            )
        self._pending.append((item, mark))

    def collect(self) -> None:
        """Free the objects whose marks are reached, in the order of use; each of them is finished first."""
        while self._pending and self._pending[0][1].reached:
            self._release()

    def wait(self) -> None:
        """Wait until no object that was given back is in use, as before a shutdown."""
        while self._pending:
            self._pending[0][1].wait()
            self._release()

    def _release(self) -> None:
        item, _ = self._pending.popleft()
        try:
            if self._finish is not None:
                self._finish(item)
        finally:
            self._free.append(item)
