"""Opening and creation of a store's files and folders, which never follows a symbolic link or opens a pipe.

Only the owner can access them, and the group as far as it can access the parent folder: see `group_bits`.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(path: Path, flags: int) -> int:
    """Open or create a regular file; return its handle.

    `O_NONBLOCK` is for pipes: opening one would otherwise wait for a process at its other end.

    Raises:
        OSError: the file cannot be opened, or is a link, a pipe, a device or a folder.
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


def new_file(path: Path, *, read_only: bool) -> int:
    """Create a file for writing, replacing any existing one; return its handle.  Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    mode = 0o600 | group_bits(path.parent) & 0o060
    os.fchmod(handle, mode & 0o440 if read_only else mode)
    return handle


def open_folder(path: Path) -> int:
    """Open a folder; return its handle.  Raises OSError, even for a link to a folder."""
    try:
        return os.open(path, _FOLDER)
    except OSError as error:
        _refuse_link(path, error)
        raise


def check_folder(path: Path) -> None:
    """Raise OSError if the path exists and is not a folder."""
    with suppress(FileNotFoundError):
        os.close(open_folder(path))


def make_folder(path: Path) -> None:
    """Create a folder in an existing one if it does not exist.  Raises OSError, even if the path is a link."""
    with suppress(FileExistsError):
        path.mkdir(0o700)
        if bits := group_bits(path.parent):
            path.chmod(path.stat().st_mode | bits)
    check_folder(path)


def group_bits(folder: Path) -> int:
    """Return the group's permissions on a folder, which files and folders created in it also get.

    The permissions of a store's folder thus decide whether several users share it.
    """
    return folder.stat().st_mode & 0o070


def _refuse_link(path: Path, error: OSError) -> None:
    """Raise an error that names the link: the system reports too many levels of links, or not a folder."""
    if path.is_symlink():
        raise OSError(error.errno, "a symbolic link", str(path)) from error
