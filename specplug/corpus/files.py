"""Files and folders of a store, opened as what they are: never what a symbolic link names, and never a pipe.

They are their owner's alone, and their group's as far as the folder is that they are made in: see `group_bits`.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(path: Path, flags: int) -> int:
    """Open or make a regular file; return its handle.

    `O_NONBLOCK` is for pipes: opening one would wait for somebody at its other end.

    Raises:
        OSError: it cannot be opened, or is a link, a pipe, a device or a folder.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _refuse_link(path, error)
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return handle


def new_file(path: Path, *, read_only: bool) -> int:
    """Make a file for writing, in place of whatever is called so; return its handle.  Raises OSError."""
    with suppress(FileNotFoundError):
        path.unlink()
    handle = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    mode = 0o600 | group_bits(path.parent) & 0o060
    os.fchmod(handle, mode & 0o440 if read_only else mode)
    return handle


def open_folder(path: Path) -> int:
    """Open a folder; return its handle.  Raises OSError, also for a link to a folder."""
    try:
        return os.open(path, _FOLDER)
    except OSError as error:
        _refuse_link(path, error)
        raise


def check_folder(path: Path) -> None:
    """Raise OSError where there is something else than a folder; nothing at all is fine."""
    with suppress(FileNotFoundError):
        os.close(open_folder(path))


def make_folder(path: Path) -> None:
    """Make a folder, if it is not there, in one that is.  Raises OSError, also where a link is in its place."""
    with suppress(FileExistsError):
        path.mkdir(0o700)
        if bits := group_bits(path.parent):
            path.chmod(path.stat().st_mode | bits)
    check_folder(path)


def group_bits(folder: Path) -> int:
    """Return what the group may do in a folder: it may do the same with what is made there.

    So a store's folder decides once whether several users share it.
    """
    return folder.stat().st_mode & 0o070


def _refuse_link(path: Path, error: OSError) -> None:
    """Say what a link is: the system calls it too many levels of them, or no folder."""
    if path.is_symlink():
        raise OSError(error.errno, "a symbolic link", str(path)) from error
