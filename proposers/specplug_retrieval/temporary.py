"""Folders that are gone with their process, whatever ends it: at the latest when the next one is made."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class TemporaryFolder:
    """A folder of this process's own.

    Its maker holds it locked.  Engines kill their processes, so whoever makes one deletes those that nobody holds.

    Args:
        prefix: of names; all folders of that prefix, where temporary files lie, are made here.

    Attributes:
        path: a folder that is not there yet, to be made by who needs it.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        self._handle: int | None
        self._folder, self._handle = _made(prefix)
        self.path = self._folder / "store"

    def close(self) -> None:
        """Delete all; do nothing if that was done."""
        handle, self._handle = self._handle, None
        if handle is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(handle)


def _made(prefix: str) -> tuple[Path, int]:
    """Return a new folder and a handle that holds it; another process may sweep it away before it is held."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        handle = _held(folder)
        if handle is not None and folder.exists():
            return folder, handle
        if handle is not None:
            os.close(handle)


def _sweep(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        handle = _held(folder) if folder.is_dir() and not folder.is_symlink() else None
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def _held(folder: Path) -> int | None:
    """Return a handle that holds a folder; None where another one does, or it is not ours."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle
    return None
