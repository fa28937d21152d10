"""Many who change a store at once: one after the other, and none in another's way while it builds."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from specplug.corpus import writing
from specplug.corpus.files import locked
from specplug.corpus.writing import LOCK_FILE
from specplug.errors import CorpusError
from tests.corpus.tools import as_content, content, listed, new_store, segment_files, some_documents


def test_who_waits_too_long_is_reported_for_whom(tmp_path):
    store = new_store(tmp_path, lock_seconds=0.05)
    store.add("c", some_documents(0))
    hold = (
        "import sys; from pathlib import Path; from specplug.corpus.files import locked\n"
        "with locked(Path(sys.argv[1]), 5): print('held', flush=True); sys.stdin.read()"
    )
    lock = segment_files(tmp_path)[0].parent / LOCK_FILE
    with subprocess.Popen([sys.executable, "-c", hold, lock], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        for change in (lambda: store.add("d", some_documents(1)), lambda: store.remove("c")):
            with pytest.raises(CorpusError, match=f"found process {holder.pid} still holds it after 0.05 s"):
                change()
        assert listed(store) == {("", "c"): (3, 60)}
        store.add("d", some_documents(1), tenant="another")
        holder.stdin.close()
    store.add("d", some_documents(1))
    assert listed(store)[("", "d")] == (3, 60)


def test_many_add_to_one_tenant_at_once(tmp_path):
    """Threads of one process, and other processes."""
    store = new_store(tmp_path, segment_tokens=60)
    add = (
        "import sys; from pathlib import Path; from tests.corpus.tools import *\n"
        "store = new_store(Path(sys.argv[1]), segment_tokens=60); print('there', flush=True); sys.stdin.read()\n"
        "for i in range(5): store.add(f'{sys.argv[2]} {i}', some_documents(i))"
    )
    others = [
        subprocess.Popen([sys.executable, "-c", add, tmp_path, f"process {i}"], stdin=-1, stdout=-1, text=True)
        for i in range(2)
    ]
    assert [other.stdout.readline() for other in others] == ["there\n"] * 2
    errors = []

    def work(name):
        try:
            for i in range(5):
                store.add(f"{name} {i}", some_documents(i))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"thread {i}",)) for i in range(2)]
    for thread in threads:
        thread.start()
    for other in others:
        other.communicate(timeout=60)
    for thread in threads:
        thread.join()
    assert errors == []
    assert [other.returncode for other in others] == [0, 0]
    names = [f"{kind} {at} {i}" for kind in ("process", "thread") for at in range(2) for i in range(5)]
    assert listed(store) == {("", name): (3, 60) for name in names}
    assert store.verify() == []
    assert {path.suffix for path in segment_files(tmp_path)[0].parent.iterdir()} == {".safetensors", ".json", ""}


def test_who_changes_a_tenant_that_is_being_changed_waits(tmp_path):
    """The second one of the same corpus is refused when the first one is done, and one of another tenant at no time."""
    store = new_store(tmp_path, lock_seconds=60)
    inside = threading.Event()
    goes_on = threading.Event()
    done = []

    def slow():
        yield from some_documents(1)
        inside.set()
        assert goes_on.wait(30)

    def second():
        with pytest.raises(CorpusError, match="a corpus of this name is there already"):
            store.add("c", some_documents(2))
        done.append("refused")

    threads = [threading.Thread(target=work) for work in (lambda: done.append(store.add("c", slow())), second)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    store.add("c", some_documents(3), tenant="another")
    assert done == []
    goes_on.set()
    for thread in threads:
        thread.join()
    assert done == [(3, 60, 0, 1, done[0].bytes, 0, 0), "refused"]
    assert content(tmp_path)[""] == {"c": as_content(some_documents(1))}


def test_a_lock_is_let_go_of_when_its_holder_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock", 1):
        raise ZeroDivisionError
    with locked(tmp_path / "lock", 0):
        pass


def test_what_killed_writers_left_is_cleared_away_but_nothing_else(tmp_path):
    store = new_store(tmp_path)
    store.add("c", some_documents(0))
    folder = segment_files(tmp_path)[0].parent
    left = ["0" * 16 + "-0.safetensors", "0" * 16 + "-1.tmp", "1" * 16 + "-0.tmp", "manifest.tmp"]
    others = ["notes.txt", "model.safetensors", "0.tmp"]
    for name in [*left, *others]:
        (folder / name).write_bytes(b"x")
    store.add("d", some_documents(2))
    assert not [name for name in left if (folder / name).exists()]
    assert all((folder / name).exists() for name in others)
    assert listed(store) == {("", "c"): (3, 60), ("", "d"): (3, 60)}
    assert store.verify() == []


def test_an_interrupt_behind_the_commit_leaves_what_was_committed(tmp_path, monkeypatch):
    store = new_store(tmp_path)
    store.add("a", some_documents(0))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writing, "clean", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.add("b", some_documents(1))
        with pytest.raises(KeyboardInterrupt):
            store.remove("a")
    assert content(tmp_path) == {"": {"b": as_content(some_documents(1))}}
    assert len(segment_files(tmp_path)) == 4
    store.add("c", some_documents(2))
    assert store.verify() == []
    assert len(segment_files(tmp_path)) == 1
