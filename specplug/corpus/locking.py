"""Locks that let only one process at a time change a tenant, by flock, which the system releases if the holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specplug.corpus.files import check_folder, group_bits, open_file
from specplug.corpus.layout import BUILDING_ENDING, OWN_FILE, SEGMENT_ENDING
from specplug.corpus.manifest import load
from specplug.corpus.writing import new_id, os_errors_named
from specplug.errors import CorpusError

_POLL_SECONDS = 0.01
_HOLDER = re.compile(rb"(\d+\n)?")


@contextmanager
def held(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file exclusively, among processes and threads.

    Raises:
        CorpusError: another holder did not release it within `seconds` (the message has the process id that it wrote
            to the file), or the file is not a lock.
    """
    with os_errors_named(path):
        check_folder(path.parent)
        handle = _lock_file(path)
    try:
        deadline = time.monotonic() + seconds
        while not _taken(handle):
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
                raise CorpusError.build(
                    "the corpus store is being changed by another process",
                    who=str(path),
                    found=f"process {holder or 'unknown'} still holds it after {seconds:g} s",
                    remedy="Try again when it is done",
                )
            time.sleep(_POLL_SECONDS)
        with suppress(OSError):  # only messages need it, and the disk may be full
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


class Building:
    """Files of a change that is not committed yet.

    A marker file, locked by the writer, protects them; without the marker or its lock, any process may delete them.
    On exit, even after an error, the context manager deletes the files that no manifest names.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.paths: list[Path] = []

    def next_path(self) -> Path:
        """Return the path of the next segment to write."""
        self.paths.append(self._folder / f"{self._id}-{len(self.paths)}{SEGMENT_ENDING}")
        return self.paths[-1]

    def __enter__(self) -> Building:
        self._id = new_id()
        self._marker = self._folder / f"{self._id}{BUILDING_ENDING}"
        with os_errors_named(self._marker):
            self._handle = _locked_file(self._marker)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(CorpusError):  # a manifest that cannot be read may name them
                named = load(self._folder).files()
                for path in self.paths:
                    if path.name not in named:
                        path.unlink(missing_ok=True)
            self._marker.unlink()
        except OSError:
            pass  # the next writer deletes them
        finally:
            os.close(self._handle)


def clean(folder: Path, named: set[str]) -> None:
    """Delete files of killed writers and segments that are no longer named.  Call with the lock held.

    Args:
        folder: a tenant's folder.
        named: the files that its manifest names.
    """
    buildings: dict[str | None, list[Path]] = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            if (own := OWN_FILE.fullmatch(name)) and name not in named:
                buildings.setdefault(own[1], []).append(folder / name)
    for building, paths in buildings.items():
        with suppress(OSError), _abandoned(folder / f"{building}{BUILDING_ENDING}") as abandoned:
            for path in paths if abandoned else []:
                path.unlink(missing_ok=True)


@contextmanager
def _abandoned(marker: Path) -> Iterator[bool]:
    """Yield whether the writer of the marker is gone; hold its lock meanwhile, so that no writer starts."""
    try:
        handle = open_file(marker, os.O_RDWR)
    except FileNotFoundError:
        yield True
        return
    try:
        yield _taken(handle)
    finally:
        os.close(handle)


def _lock_file(path: Path) -> int:
    """Open or create a lock file; a file with other contents, which may be linked to it, is not touched."""
    try:
        handle = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(handle, 0o600 | group_bits(path.parent) & 0o060)
    except FileExistsError:
        handle = open_file(path, os.O_RDWR)
    if not _HOLDER.fullmatch(os.pread(handle, 32, 0)):
        os.close(handle)
        raise OSError(errno.EEXIST, "a file that is not a lock", str(path))
    return handle


def _locked_file(path: Path) -> int:
    """Create a file and lock it; retry if a cleaning process has deleted it in between."""
    while True:
        handle = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if os.fstat(handle).st_nlink:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
