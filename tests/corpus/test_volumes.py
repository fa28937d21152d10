"""Stores on volumes that cannot do all that a local disk can; what `flock`, `fchmod` and `fsync` raise is planted."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.errors import CorpusError
from tests.corpus.test_faults import CHANGES, prepared
from tests.corpus.tools import TOKENIZER, content, new_store, some_documents

NO_LOCKS = (errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EBADF, errno.EINVAL)
"""What NFS, SMB and FUSE mounts answer to `flock`."""


def raises(number: int):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", NO_LOCKS)
@pytest.mark.parametrize("change", [*CHANGES, "build"])
def test_without_locks_a_change_is_refused_and_reading_goes_on(tmp_path, monkeypatch, change, number):
    store = prepared(tmp_path / "old")
    before = content(tmp_path / "old")
    monkeypatch.setattr(fcntl, "flock", raises(number))
    with pytest.raises(CorpusError, match="the volume cannot lock files") as caught:
        new_store(tmp_path / "new") if change == "build" else CHANGES[change](store)
    found, folder = str(caught.value), tmp_path / ("new" if change == "build" else "old") / "store"
    assert found.startswith(str(folder))
    assert f"found {os.strerror(number)} from flock" in found
    assert "Build the store on a local disk and copy its folder" in found
    assert content(tmp_path / "old") == before
    assert View(store.root, TOKENIZER).snapshot.problems == ()
    assert store.verify() == []


def test_modes_that_a_mount_fixes_and_folders_that_take_no_fsync_are_no_reason_to_refuse(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir(0o770)  # for a group
    fsync = os.fsync

    def of_files_only(handle):
        raises(errno.EINVAL)() if stat.S_ISDIR(os.fstat(handle).st_mode) else fsync(handle)

    monkeypatch.setattr(os, "fsync", of_files_only)
    monkeypatch.setattr(os, "fchmod", raises(errno.EPERM))
    monkeypatch.setattr(Path, "chmod", raises(errno.EPERM))
    store = new_store(tmp_path)
    store.add("new", some_documents(1))
    store.remove("new", documents=["d0"])
    assert Store(store.root).verify() == []
