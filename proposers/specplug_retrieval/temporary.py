"""Temporary folders that are deleted after their process ends: at the latest when the next one is created."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class TemporaryFolder:
    """A folder that belongs to this process.

    Its creator holds a lock on it.  Engines kill their processes, so each creation deletes the folders without a lock.

    Args:
        prefix: prefix of the folder's name, which only this class may use in the directory of temporary files.

    Attributes:
        path: a folder that does not exist yet; the caller creates it.
    """

    def __init__(self, prefix: str) -> None:
        _sweep(prefix)
        self._handle: int | None
        self._folder, self._handle = _made(prefix)
        self.path = self._folder / "store"

    def close(self) -> None:
        """Delete the folder; further calls have no effect."""
        handle, self._handle = self._handle, None
        if handle is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(handle)


def _made(prefix: str) -> tuple[Path, int]:
    """Return a new folder and the handle of its lock; retries if another process deletes it before it is locked."""
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
    """Lock a folder and return the handle; None if another handle holds the lock, or another user owns the folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return None
        return handle
    return None
