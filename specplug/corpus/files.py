"""A store's files: opened without following links, written atomically, and locked.

No symbolic link is followed and no pipe opened.  Only the owner can access the files, and the group as far as it can
access the parent folder: see `group_bits`.  Everything is written and hashed in pieces, without the GIL, so that an
engine's process can do it while it runs steps.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from specplug.errors import CorpusError

ASIDE_ENDING = ".tmp"
Bytes: TypeAlias = Any
"""Any object with a contiguous buffer."""

PIECE = 1 << 20  # bytes

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_POLL_SECONDS = 0.01
_HOLDER = re.compile(rb"(\d+\n)?")


class BusyError(CorpusError):
    """Another process is changing the store."""


def yield_gil() -> None:
    """Release the GIL for other threads: a Python loop otherwise releases it only every 5 ms."""
    time.sleep(0)


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


def open_file(path: Path, flags: int) -> int:
    """Open or create a regular file; return its handle.  A link, a pipe, a device or a folder raises OSError.

    `O_NONBLOCK` is for pipes: opening one would otherwise wait for a process at its other end.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _refuse_link(path, error)
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return handle


def read_file(path: Path) -> tuple[bytes, int]:
    """Return a file's content, and its modification time in nanoseconds.  Raises OSError."""
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime_ns


def check_folder(path: Path) -> None:
    """Raise OSError if the path exists and is not a folder; a link to a folder is none."""
    try:
        os.close(os.open(path, _FOLDER))
    except FileNotFoundError:
        pass
    except OSError as error:
        _refuse_link(path, error)
        raise


def make_folder(path: Path) -> None:
    """Create a folder in an existing one if it does not exist.  Raises OSError, even if the path is a link."""
    with suppress(FileExistsError):
        path.mkdir(0o700)
        if bits := group_bits(path.parent):
            with suppress(PermissionError):
                path.chmod(path.stat().st_mode | bits)
    check_folder(path)


def _set_mode(handle: int, mode: int) -> None:
    """Set a file's permissions, unless they are the mount's, as on FAT and SMB, which refuse it."""
    with suppress(PermissionError):
        os.fchmod(handle, mode)


def group_bits(folder: Path) -> int:
    """Return the group's permissions on a folder, which files and folders created in it also get.

    The permissions of a store's folder thus decide whether several users share it.
    """
    return folder.stat().st_mode & 0o070


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the file system takes an fsync of a folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # a store's own folder may be a link
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def write_file(path: Path, parts: Collection[Bytes], *, newer_than: int = 0, read_only: bool = False) -> int:
    """Write a file's parts aside, fsync it and rename it to `path`, over an existing one; return its size.

    Its modification time will exceed `newer_than` nanoseconds, so that each version has a different one.  Does not
    fsync the folder.  A file that cannot be written raises CorpusError, and no part of it is left.
    """
    aside = path.with_suffix(ASIDE_ENDING)
    with os_errors_named(path):
        try:
            size = _write(aside, parts, newer_than, read_only)
            os.replace(aside, path)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
    return size


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


@contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold a lock file exclusively, among processes and threads; the system releases it if the holder dies.

    Another holder that does not release it within `seconds` raises BusyError with the process id that it wrote to the
    file; a file that is not a lock, or a file system without locks, raises CorpusError.
    """
    with os_errors_named(path):
        check_folder(path.parent)
        handle = _open_lock(path)
    try:
        deadline = time.monotonic() + seconds
        while not _is_locked(handle, path):
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 32, 0).decode(errors="replace").strip()
                raise BusyError.build(
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


def _open_lock(path: Path) -> int:
    """Open or create a lock file; return its handle.  One with other contents, as of a hard link, is not touched."""
    try:
        handle = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        _set_mode(handle, 0o600 | group_bits(path.parent) & 0o060)
    except FileExistsError:
        handle = open_file(path, os.O_RDWR)
    if not _HOLDER.fullmatch(os.pread(handle, 32, 0)):
        os.close(handle)
        raise OSError(errno.EEXIST, "a file that is not a lock", str(path))
    return handle


def _is_locked(handle: int, path: Path) -> bool:
    """Lock an open file exclusively; return False if another handle holds it.  Some network mounts have no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        raise CorpusError.build(
            "the volume cannot lock files, which changes of a corpus store need",
            who=str(path.parent),
            found=f"{error.strerror or error} from flock",
            remedy="Build the store on a local disk and copy its folder to the volume: servers that draft from it need "
            "no locks",
        ) from error
    return True


def _write(path: Path, parts: Iterable[Bytes], newer_than: int, read_only: bool) -> int:
    """Create a file, replacing any existing one, and fsync it; return its size."""
    with suppress(FileNotFoundError):
        path.unlink()
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        mode = 0o600 | group_bits(path.parent) & 0o060
        _set_mode(handle, mode & 0o440 if read_only else mode)
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


def _refuse_link(path: Path, error: OSError) -> None:
    """Raise an error that names the link: the system reports too many levels of links, or not a folder."""
    if path.is_symlink():
        raise OSError(error.errno, "a symbolic link", str(path)) from error
