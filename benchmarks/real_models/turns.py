"""Turns of two servers that answer the same prompts at the same time, each for a few engine steps.

Only one of them works at a time.  What else the machine does then slows both alike, while it would slow only one of
two that answer whole groups of prompts in turn.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEPS = 4
"""Engine steps of a turn."""

_GO = b"g"
_END = b"e"
"""What the pipes carry: the turn, and that the other server has no more steps."""


class Turns:
    """One server's side: `begin` and `end` are called around each of its steps, and `leave` after the last one.

    Args:
        own: the pipe through which the turn comes; None for a server that answers alone.
        other: the pipe through which it goes to the other server.
    """

    def __init__(self, own: str | None = None, other: str | None = None) -> None:
        self._is_alone = own is None
        self._left = 0  # steps of the present turn
        self._pipes = [os.open(path, os.O_RDWR) for path in (own, other) if path is not None]

    def begin(self) -> None:
        """Wait for the turn."""
        if not self._is_alone and not self._left:
            self._is_alone = os.read(self._pipes[0], 1) == _END
            self._left = STEPS

    def end(self) -> None:
        """Pass the turn on after its last step."""
        self._left -= 1
        if not self._is_alone and not self._left:
            os.write(self._pipes[1], _GO)

    def leave(self) -> None:
        """Let the other server go on alone."""
        if self._pipes:
            os.write(self._pipes[1], _END)
        for pipe in self._pipes:
            os.close(pipe)


@contextmanager
def pipes(first: int) -> Iterator[list[tuple[str, str]]]:
    """Yield the arguments of the `Turns` of two servers; `first` (0 or 1) has the first turn."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / name) for name in ("0", "1")]
        for path in paths:
            os.mkfifo(path)
        opened = [os.open(path, os.O_RDWR) for path in paths]
        os.write(opened[first], _GO)
        try:
            yield [(paths[0], paths[1]), (paths[1], paths[0])]
        finally:
            for pipe in opened:
                os.close(pipe)
