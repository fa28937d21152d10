"""Files of a store are opened as themselves: no links, no pipes; and they are private."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from specplug.corpus.manifest import MANIFEST_FILE
from specplug.corpus.store import STORE_FILE, Store
from specplug.corpus.tenant import TENANTS
from specplug.corpus.view import View
from specplug.corpus.writing import LOCK_FILE
from specplug.errors import CorpusError
from tests.corpus.tools import TOKENIZER, listed, new_store, segment_files, some_documents

VICTIM = b"12345 letters of somebody else"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path)
    for tenant in ("bad", "good"):
        store.add("c", some_documents(0), tenant=tenant)
        store.add("d", some_documents(1), tenant=tenant)
    return store


@pytest.fixture
def bad(store: Store) -> Path:
    return store.root / TENANTS / "t-bad"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(VICTIM)
    return path


def changes(store: Store) -> dict[str, object]:
    return {
        "add": lambda: store.add("new", some_documents(2), tenant="bad"),
        "remove": lambda: store.remove("c", tenant="bad"),
        "remove a document": lambda: store.remove("c", documents=["d0"], tenant="bad"),
    }


@pytest.mark.parametrize("change", ["add", "remove", "remove a document"])
@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", [LOCK_FILE, "manifest.tmp", "manifest.old"])
def test_nothing_is_written_through_a_link(store, bad, victim, name, link, change):
    (bad / name).unlink(missing_ok=True)
    link(victim, bad / name)
    try:
        changes(store)[change]()
        assert "manifest" in name
    except CorpusError as error:
        expected = "a symbolic link" if link is os.symlink else "a file that is not a lock"
        assert f"{name}: a file of the corpus store could not be written; found {expected}" in str(error)  # noqa: PT017
    assert victim.read_bytes() == VICTIM
    assert not stat.S_IMODE(victim.stat().st_mode) & 0o111
    assert listed(store)[("good", "c")] == (3, 60)


def test_the_lock_of_a_new_store_is_no_link_either(tmp_path, victim):
    root = tmp_path / "new"
    root.mkdir()
    (root / LOCK_FILE).symlink_to(victim)
    with pytest.raises(CorpusError, match="found a symbolic link"):
        Store.create(root, TOKENIZER)
    (root / LOCK_FILE).unlink()
    (root / "store.tmp").symlink_to(victim)
    Store.create(root, TOKENIZER)
    assert victim.read_bytes() == VICTIM
    assert not (root / STORE_FILE).is_symlink()


def test_a_tenants_folder_that_is_a_link_is_refused_and_the_others_serve(store, bad, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(bad, elsewhere)
    bad.symlink_to(elsewhere)
    before = {path.name for path in elsewhere.iterdir()}
    for change in (*changes(store).values(), lambda: store.list("bad"), lambda: store.document("d0", tenant="bad")):
        with pytest.raises(CorpusError, match=r"t-bad.*found a symbolic link"):
            change()
    assert {path.name for path in elsewhere.iterdir()} == before
    assert list(listed(store)) == [("good", "c"), ("good", "d")]
    seen = View(store.root, TOKENIZER).snapshot
    assert list(seen.tenants) == ["good"]
    for (problem,) in (seen.problems, [each.what for each in store.verify()]):
        assert "t-bad" in problem
        assert "a symbolic link" in problem
    (store.root / TENANTS / "t-new").symlink_to(tmp_path / "nowhere")
    with pytest.raises(CorpusError, match="found a symbolic link"):
        store.add("c", some_documents(0), tenant="new")
    assert not (tmp_path / "nowhere").exists()


def test_the_folder_of_all_tenants_may_be_no_link(store, tmp_path):
    shutil.move(store.root / TENANTS, tmp_path / "elsewhere")
    (store.root / TENANTS).symlink_to(tmp_path / "elsewhere")
    assert listed(store) == {}
    assert ["a symbolic link" in problem.what for problem in store.verify()] == [True]
    with pytest.raises(CorpusError, match="found a symbolic link"):
        store.add("c", some_documents(0), tenant="new")


def test_the_store_itself_may_be_named_by_a_link(store, tmp_path):
    (tmp_path / "link").symlink_to(store.root)
    linked = Store(tmp_path / "link")
    linked.add("e", some_documents(2), tenant="good")
    assert linked.verify() == []
    assert len(View(tmp_path / "link", TOKENIZER).snapshot.tenants) == 2


@pytest.fixture
def interrupted():
    """A wait for a pipe's other end, which never comes, raises."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("name", [MANIFEST_FILE, LOCK_FILE, "segment", STORE_FILE])
def test_a_pipe_holds_nobody_up(store, bad, name):
    path = {"segment": segment_files(store.root.parent)[0], STORE_FILE: store.root / STORE_FILE}.get(name, bad / name)
    path.unlink()
    os.mkfifo(path)
    if name == STORE_FILE:
        with pytest.raises(CorpusError, match="found not a regular file"):
            Store(store.root)
        return
    refused = [str(store.verify())]
    for ask in (
        store.list,
        lambda: View(store.root, None),
        lambda: store.list("bad"),
        lambda: store.remove("c", documents=["d0"], tenant="bad"),
        lambda: store.remove("d", documents=["d0"], tenant="bad"),
    ):
        try:
            ask()
        except CorpusError as error:
            refused.append(str(error))
    assert "found not a regular file" in "".join(refused)


def modes(root: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [root, *root.rglob("*")]}


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_store_is_its_owners_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = new_store(tmp_path)
        store.add("c", some_documents(0), tenant="a")
    finally:
        os.umask(before)
    found = modes(store.root)
    (segment,) = segment_files(tmp_path)
    assert {found["store"], found[TENANTS], found["t-a"]} == {0o700}
    assert found[segment.name] == 0o400
    assert {found[name] for name in (STORE_FILE, MANIFEST_FILE, LOCK_FILE)} == {0o600}
    assert len(found) == 7


def test_a_group_may_share_a_store(tmp_path):
    """Members may use it as far as they may use the folder; others may not."""
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o2777)
    store = new_store(tmp_path)
    store.add("c", some_documents(0), tenant="a")
    found = modes(root)
    (segment,) = segment_files(tmp_path)
    assert found[segment.name] == 0o440
    assert {found[name] & 0o777 for name in (TENANTS, "t-a")} == {0o770}
    assert {found[name] for name in (STORE_FILE, MANIFEST_FILE, LOCK_FILE)} == {0o660}
