"""Turns of servers that answer the same prompts at the same time, each for a few engine steps.

Only one of them works at a time.  What else the machine does then slows all alike, while it would slow only one of
several that answer whole groups of prompts in turn.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

STEPS = 4
"""Engine steps of a turn."""

_GO = b"g"
_DONE = b"d"
_END = b"e"
"""What pipes carry: a turn, its end, and that the server takes no more."""

Pipes = tuple[str, str]
"""Paths of the pipe through which a server's turns come, and of the one through which they go back."""


class Turns:
    """A server's side: `begin` and `end` are called around each of its steps.

    Args:
        pipes: its pipes; None for a server that answers alone.
    """

    def __init__(self, pipes: Pipes | None = None) -> None:
        self._pipes = [os.open(path, os.O_RDWR) for path in pipes or ()]
        self._left = 0  # steps of the present turn

    def begin(self) -> None:
        """Wait for the turn."""
        if self._pipes and not self._left:
            os.read(self._pipes[0], 1)
            self._left = STEPS

    def end(self) -> None:
        """Give the turn back after its last step."""
        self._left -= 1
        if self._pipes and not self._left:
            os.write(self._pipes[1], _DONE)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in self._pipes:
            os.close(pipe)


class TurnTaking:
    """The side of the process that gives the turns.

    Attributes:
        pipes: of each server.
    """

    def __init__(self, folder: Path, servers: int) -> None:
        self.pipes = [(str(folder / f"{place}.go"), str(folder / f"{place}.back")) for place in range(servers)]
        for path in [path for pipes in self.pipes for path in pipes]:
            os.mkfifo(path)
        self._opened = [[os.open(path, os.O_RDWR) for path in pipes] for pipes in self.pipes]

    def ended(self, place: int) -> None:
        """Note that a server has answered, or failed, whether or not it has the turn."""
        os.write(self._opened[place][1], _END)

    def run(self) -> None:
        """Give the servers turns, in order, until all have ended."""
        waiting = list(self._opened)
        while waiting:
            for each in list(waiting):
                go, back = each
                os.write(go, _GO)
                if os.read(back, 1) == _END:
                    waiting.remove(each)

    def close(self) -> None:
        """Close the pipes."""
        for pipe in [pipe for pipes in self._opened for pipe in pipes]:
            os.close(pipe)


@contextmanager
def turn_taking(servers: int) -> Iterator[TurnTaking]:
    """Yield what gives so many servers turns."""
    with tempfile.TemporaryDirectory() as folder, closing(TurnTaking(Path(folder), servers)) as turns:
        yield turns
