"""A failure at any moment keeps what was committed and leaves nothing half written."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from specplug.corpus import segment, writing
from specplug.corpus.manifest import MANIFEST_FILE, load
from specplug.corpus.store import STORE_FILE, Store
from specplug.corpus.view import View
from specplug.errors import CorpusError, SpecplugError
from tests.corpus.tools import (
    TOKENIZER,
    content,
    filled,
    flip,
    listed,
    new_store,
    overwrite,
    segment_files,
    some_documents,
)


class Failing:
    """Lets one kind of call fail at its k-th time, and from then on if `for_good`."""

    def __init__(self, monkeypatch, call: str, k: int, for_good: bool) -> None:
        self._real, self._left, self._for_good = getattr(os, call), k, for_good
        self.failed = False
        monkeypatch.setattr(os, call, self)

    def __call__(self, *arguments, **named):
        self._left -= 1
        if self._left == 0 or (self._left < 0 and self._for_good):
            self.failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(*arguments, **named)


def prepared(root: Path) -> Store:
    store = new_store(root, segment_tokens=60)
    for i in range(1, 3):
        store.add(f"old {i}", some_documents(i, 2))
    store.remove("old 1", documents=["d1"])
    return store


CHANGES = {
    "add": lambda store: store.add("new", some_documents(9, 3)),
    "add for a new tenant": lambda store: store.add("new", some_documents(9), tenant="new"),
    "remove": lambda store: store.remove("old 2"),
    "remove a document": lambda store: store.remove("old 2", documents=["d1"]),
    "sync": lambda store: store.sync("old 2", [*some_documents(2, 1), *some_documents(9, 3)]),
    "remove a document of two segments": lambda store: store.remove("old 1", documents=["d0"]),
}


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_full_disk_at_any_moment(tmp_path, change, call, for_good):
    """Each change is tried with the k-th call failing, for all k, until it does not fail any more."""
    store = prepared(tmp_path)
    before = content(tmp_path)
    for k in range(1, 100):
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, call, k, for_good)
            try:
                CHANGES[change](store)
            except CorpusError as error:
                assert "No space left on device" in str(error)  # noqa: PT017 - it need not be raised
                assert content(tmp_path) == before
                assert failing.failed
            else:
                assert not failing.failed or not for_good  # neighbours were left as they are
                break
        assert store.verify() == []
    assert k > 1
    assert content(tmp_path) != before
    store.add("after", some_documents(10))
    assert listed(store)[("", "after")] == (3, 60)
    assert store.verify() == []
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    named = {file for folder in tmp_path.glob("store/tenants/*") for file in load(folder).files()}
    assert names == {*named, MANIFEST_FILE, "lock", STORE_FILE}


def test_a_change_that_does_not_fit_on_the_disk_is_refused(small_disk):
    store = new_store(small_disk)
    for name in ("a", "b", "c"):
        store.add(name, some_documents(0))
    with suppress(OSError), (small_disk / "padding").open("wb", buffering=0) as padding:
        while True:
            padding.write(b"x" * 4096)
    before = content(small_disk)
    for change in (
        lambda: store.add("d", some_documents(1, 100, 100)),
        lambda: store.remove("a"),
        lambda: store.remove("a", documents=["d0"]),
    ):
        with pytest.raises(CorpusError, match="No space left"):
            change()
    assert content(small_disk) == before
    assert store.verify() == []
    (small_disk / "padding").unlink()
    store.remove("a")
    assert listed(store) == {("", name): (3, 60) for name in ("b", "c")}


def test_a_store_that_cannot_be_made_is_not_there(tmp_path):
    for k in range(1, 20):
        with pytest.MonkeyPatch.context() as patch:
            Failing(patch, "write", k, True)
            try:
                new_store(tmp_path)
            except SpecplugError:
                with pytest.raises(CorpusError, match="no corpus store"):
                    Store(tmp_path / "store")
            else:
                break
    assert new_store(tmp_path).list() == []


def test_kill_9_at_any_moment_loses_nothing(tmp_path):
    """A process that adds and removes is killed again and again; what it printed as done is done."""
    new_store(tmp_path)
    work = (
        "import sys; from pathlib import Path; from tests.corpus.tools import *\n"
        "store, round = new_store(Path(sys.argv[1]), segment_tokens=100), sys.argv[2]\n"
        "for i in range(1000):\n"
        "    print('begin', f'{round} {i}', flush=True); store.add(f'{round} {i}', some_documents(i, 8))\n"
        "    print('added', f'{round} {i}', flush=True)\n"
        "    if i % 4 == 3: store.remove(f'{round} {i - 1}'); print('removed', f'{round} {i - 1}', flush=True)\n"
    )
    chance, state = random.Random(5), {}
    for round_ in range(5):
        with subprocess.Popen([sys.executable, "-c", work, tmp_path, str(round_)], stdout=-1, text=True) as worker:
            assert worker.stdout.readline().startswith("begin")
            killer = threading.Timer(chance.uniform(0.02, 0.4), worker.send_signal, (signal.SIGKILL,))
            killer.start()
            lines = [f"begin {round_} 0", *worker.stdout.read().splitlines()]
            killer.join()
        for line in lines:
            what, name = line.split(" ", 1)
            state[name] = what
        store = Store(tmp_path / "store", lock_seconds=1)
        there = {name: counts for (_, name), counts in listed(store).items()}
        added = {name for name, what in state.items() if what == "added"}
        # What was begun, or was to be removed, when it was killed is there whole or not at all.
        assert len(added - set(there)) <= 1
        assert len(set(there) - added) <= 1
        assert not set(there) & {name for name, what in state.items() if what == "removed"}
        assert set(there.values()) <= {(8, 160)}
        assert store.verify() == []
        state = dict.fromkeys(there, "added")
    store.add("last", some_documents(0))
    names = {path.name for path in (tmp_path / "store" / "tenants" / "t-").iterdir()}
    assert names == load(tmp_path / "store" / "tenants" / "t-").files() | {MANIFEST_FILE, "lock"}


def test_a_torn_manifest_costs_its_tenant_only(tmp_path):
    store = new_store(tmp_path)
    store.add("c", some_documents(0), tenant="a")
    store.add("c", some_documents(1), tenant="b")
    path = tmp_path / "store" / "tenants" / "t-a" / MANIFEST_FILE
    whole = path.read_bytes()
    newer = whole.replace(b'"version":"2"', b'"version":"9"')
    hostile = whole.replace(b".safetensors", b"/../../../x")
    for data in (b"", b"{}", b"[" * 100_000, whole[:-1], whole.replace(b'"tokens":60', b'"tokens":61'), newer, hostile):
        path.write_bytes(data)
        for ask in (
            lambda: store.list("a"),
            lambda: store.add("d", some_documents(2), tenant="a"),
            lambda: store.remove("c", tenant="a"),
        ):
            with pytest.raises(CorpusError, match=r"t-a/manifest\.json: "):
                ask()
        assert listed(store) == {("b", "c"): (3, 60)}
        (problem,) = store.verify()
        assert problem.path == str(path)
        view = View(store.root, TOKENIZER)
        assert list(view.snapshot.tenants) == ["b"]
        assert len(view.snapshot.problems) == 1
    path.write_bytes(whole)
    assert len(store.list()) == 2


def test_a_lost_manifest_is_not_taken_for_an_empty_tenant(tmp_path):
    """Otherwise the next writer would delete all of the tenant's data."""
    store = new_store(tmp_path)
    store.add("c", some_documents(0))
    (file,) = segment_files(tmp_path)
    (file.parent / MANIFEST_FILE).unlink()
    with pytest.raises(CorpusError, match="the manifest is missing"):
        store.add("d", some_documents(1))
    assert segment_files(tmp_path) == [file]
    assert len(View(store.root, None).snapshot.problems) == len(store.verify()) == 1


def test_a_manifest_that_names_another_file_is_refused(tmp_path):
    """Even with a valid checksum, no file outside the folder is opened or deleted."""
    from specplug.corpus.manifest import commit

    store = new_store(tmp_path)
    store.add("c", some_documents(0))
    folder = segment_files(tmp_path)[0].parent
    manifest = load(folder)
    for file in ("../x.safetensors", "/etc/passwd", "x", MANIFEST_FILE):
        commit(folder, manifest, [replace(manifest.segments[0], file=file)])
        with pytest.raises(CorpusError, match="String should match pattern"):
            store.list("")


def test_torn_segments_are_found_and_the_rest_serves(tmp_path):
    store = filled(tmp_path, 3, segment_tokens=80)
    damage = {
        "cut": lambda data: data[:-100],
        "bits": lambda data: data[:-3] + b"xyz",
        "gone": None,
    }
    for file, how in zip(segment_files(tmp_path), damage.values(), strict=True):
        file.unlink() if how is None else overwrite(file, how(file.read_bytes()))
    problems = store.verify()
    assert sorted(problem.path for problem in problems) == sorted(map(str, store_files(store)))
    for i in range(3):
        assert store.remove(f"c{i}") == (3, 60)
    assert store.verify() == []
    store.add("c0", some_documents(0))
    assert listed(store) == {("", "c0"): (3, 60)}


def store_files(store: Store) -> list[Path]:
    folder = store.root / "tenants" / "t-"
    return [folder / file for file in load(folder).files()]


def test_a_torn_segment_does_not_get_a_new_checksum(tmp_path):
    store = new_store(tmp_path)
    store.add("c", some_documents(0))
    (file,) = segment_files(tmp_path)
    flip(file)
    for change in (
        lambda: store.remove("c", documents=["d0"]),
        lambda: store.sync("c", some_documents(1)),
    ):
        with pytest.raises(CorpusError, match=r"altered since it was written.*'names'"):
            change()
    for i in range(6):
        store.add(f"new {i}", some_documents(i))
    assert file in segment_files(tmp_path)
    assert [problem.path for problem in store.verify()] == [str(file)]


def test_a_corpus_is_removed_from_a_damaged_segment_that_others_share(tmp_path):
    store = filled(tmp_path, 5)
    (file,) = segment_files(tmp_path)
    flip(file)
    seen = View(store.root, TOKENIZER)
    assert len(seen.snapshot.tenants[""]) == 1
    assert store.remove("c0") == (3, 60)
    assert [*listed(store)] == [("", f"c{i}") for i in range(1, 5)]
    assert dict(seen.refresh().tenants) == {}, "the file still has the removed corpus, so nothing of it serves"
    assert "not the one that its manifest means" in seen.snapshot.problems[0]
    for i in range(1, 5):
        store.remove(f"c{i}")
    assert segment_files(tmp_path) == store.list() == store.verify() == []


def test_what_was_removed_from_a_damaged_segment_stays_away_when_the_file_is_whole_again(tmp_path):
    store = filled(tmp_path, 5)
    (file,) = segment_files(tmp_path)
    whole = file.read_bytes()
    flip(file)
    store.remove("c0")
    overwrite(file, whole)
    for i in range(6):
        store.add(f"new {i}", some_documents(i))
    assert ("", "c0") not in listed(store)
    served = View(store.root, TOKENIZER).snapshot.tenants[""]
    assert not any("c0" in it.corpora for it in served)
    assert [problem.path for problem in store.verify()] == [str(file)]


def test_a_file_that_cannot_be_opened_now_is_not_taken_for_damaged(tmp_path, monkeypatch):
    store = filled(tmp_path, 2)
    before = content(tmp_path)

    def refused(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(segment, "open_file", refused)
        with pytest.raises(CorpusError, match="Too many open files"):
            store.remove("c0")
    assert content(tmp_path) == before
    store.remove("c0")
    assert [*content(tmp_path)[""]] == ["c1"]


def test_a_damaged_segment_keeps_nothing_of_the_others_from_being_removed_or_merged(tmp_path):
    store = new_store(tmp_path)
    store.add("c", some_documents(0, 1))
    flip(segment_files(tmp_path)[0])
    for i in range(20):
        store.add(f"c{i}", some_documents(i, 2))
    assert len(segment_files(tmp_path)) <= 3
    store.remove("c3", documents=["d0"])
    assert listed(store)[("", "c3")] == (1, 20)


def test_neighbours_that_cannot_be_merged_keep_no_change_from_being_made(tmp_path, monkeypatch):
    """Here the disk is full for all but the first segment of a change."""
    store = filled(tmp_path, 3)
    write = writing.write_segment
    written = []

    def full(path, *arguments):
        written.append(path)
        if len(written) > 1:
            raise CorpusError.build("a file of the corpus store could not be written", found="No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(writing, "write_segment", full)
    store.add("new", some_documents(4))
    assert len(written) == 2
    monkeypatch.undo()
    assert [*content(tmp_path)[""]] == ["c0", "c1", "c2", "new"]
    assert len(segment_files(tmp_path)) == 2
    store.remove("c0")
    assert len(segment_files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "torn or foreign"),
        (b'{"format":"something","version":"1","checksum":""}', "not a file of a corpus store; found 'something'"),
        (None, "found version 7; expected 2. Update specplug"),
        (b"cut", "torn or foreign"),
    ],
)
def test_a_store_file_that_is_torn_external_or_newer_is_refused(tmp_path, data, message):
    path = new_store(tmp_path).root / STORE_FILE
    whole = path.read_bytes()
    path.write_bytes({None: whole.replace(b'"version":"2"', b'"version":"7"'), b"cut": whole[:-5]}.get(data, data))
    for ask in (Store, lambda root: Store.create(root, TOKENIZER), lambda root: View(root, None)):
        with pytest.raises(CorpusError, match=message):
            ask(path.parent)
