"""Atomic writing of files: they are written aside, fsynced and renamed.

Everything is written and hashed in pieces, without the GIL, so that an engine's process can do it while it runs steps.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from specplug.corpus.files import new_file, open_file
from specplug.corpus.layout import ASIDE_ENDING
from specplug.errors import CorpusError

Bytes: TypeAlias = Any
"""Any object with a contiguous buffer."""

PIECE = 1 << 20  # bytes


def yield_gil() -> None:
    """Release the GIL for other threads: a Python loop otherwise releases it only every 5 ms."""
    time.sleep(0)


def new_id() -> str:
    """Return 16 hexadecimal digits that no other writer has."""
    return secrets.token_hex(8)


@contextmanager
def os_errors_named(path: Path) -> Iterator[None]:
    """Convert system errors of a write to errors that name the file."""
    try:
        yield
    except OSError as error:
        raise CorpusError.build(
            "a file of the corpus store could not be written",
            who=str(path),
            found=error.strerror or str(error),
            remedy="What was there before is still there, and nothing of the change is",
        ) from error


def write_file(
    path: Path, parts: Collection[Bytes], *, newer_than: int = 0, read_only: bool = False, room: Path | None = None
) -> int:
    """Write a file aside, fsync it and rename it to `path`; return its size.  Does not fsync the folder.

    Args:
        path: its final path; an existing file is replaced.
        parts: its bytes, in sequence.
        newer_than: nanoseconds that its modification time must exceed, so that each version has a different one.
        read_only: remove write permissions.
        room: a file of `keep_room`, which is deleted if the disk is full.

    Raises:
        CorpusError: it could not be written; no part of it is left.
    """
    aside = path.with_name(path.name.removesuffix(path.suffix) + ASIDE_ENDING)
    with os_errors_named(path):
        try:
            size = _write(aside, parts, newer_than, read_only)
            os.replace(aside, path)
        except BaseException as error:
            with suppress(OSError):
                aside.unlink()
            if room is None or not isinstance(error, OSError) or not _deleted(room):
                raise
            return write_file(path, parts, newer_than=newer_than, read_only=read_only)
    return size


def keep_room(path: Path, size: int) -> None:
    """Let a file without content occupy at least `size` bytes, if the disk has them, for `write_file`."""
    with suppress(OSError):
        handle = open_file(path, os.O_WRONLY | os.O_CREAT)
        try:
            if os.fstat(handle).st_size < size:
                os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # a store's own folder may be a link
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checksum(data: Bytes) -> str:
    """Return 64 hexadecimal digits of blake2b."""
    digest = hashlib.blake2b(digest_size=32)
    for piece in pieces(data):
        digest.update(piece)
    return digest.hexdigest()


def pieces(data: Bytes) -> Iterator[memoryview]:
    """Cut a buffer into parts that take no longer than a millisecond each."""
    view = memoryview(data)
    if view.nbytes:  # an empty buffer with items of several bytes cannot be cast
        view = view.cast("B")
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE]


def _deleted(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _write(path: Path, parts: Iterable[Bytes], newer_than: int, read_only: bool) -> int:
    handle = new_file(path, read_only=read_only)
    try:
        size = 0
        for part in parts:
            for piece in pieces(part):
                size += len(piece)
                while piece:
                    piece = piece[os.write(handle, piece) :]
        if newer_than:
            now = max(time.time_ns(), newer_than + 1)
            os.utime(handle, ns=(now, now))
        os.fsync(handle)
        return size
    finally:
        os.close(handle)
