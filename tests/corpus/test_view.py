"""The view: what a serving process sees while others change the store."""

from __future__ import annotations

import logging
import os
import shutil
import threading

import pytest

from specplug.corpus import tenant as tenants
from specplug.corpus.manifest import MANIFEST_FILE
from specplug.corpus.store import Store
from specplug.corpus.view import Snapshot, View
from specplug.errors import CorpusError
from tests.corpus.tools import (
    OTHER,
    TOKENIZER,
    new_store,
    overwrite,
    segment_files,
    some_documents,
)


@pytest.fixture
def store(tmp_path) -> Store:
    return new_store(tmp_path, segment_tokens=80)  # so that segments stay apart


def opened(snapshot: Snapshot, name: str = "") -> list[int]:
    return [*map(id, snapshot.tenants[name])]


def test_an_empty_store_and_none(tmp_path, store):
    seen = View(store.root, TOKENIZER)
    assert (dict(seen.snapshot.tenants), seen.snapshot.problems, seen.tokenizer) == ({}, (), TOKENIZER)
    assert seen.refresh() is None
    with pytest.raises(CorpusError, match="no corpus store"):
        View(tmp_path, TOKENIZER)
    with pytest.raises(CorpusError, match="of another tokenizer"):
        View(store.root, OTHER)


def test_changes_are_seen_and_only_new_segments_are_opened(store, monkeypatch):
    seen, prefix = View(store.root, None), []
    real = tenants.Segment
    monkeypatch.setattr(tenants, "Segment", lambda path, *a, **k: prefix.append(path) or real(path, *a, **k))
    store.add("a", some_documents(0))
    first = seen.refresh()
    assert seen.refresh() is None
    assert seen.snapshot is first
    store.add("b", some_documents(1))
    store.add("c", some_documents(2), tenant="other")
    prefix.clear()
    second = seen.refresh()
    assert len(prefix) == 2
    assert opened(second)[0] == opened(first)[0]
    assert second.generation > first.generation
    assert second.tenants[""][0] is first.tenants[""][0]
    assert list(second.tenants) == ["", "other"]
    assert len(first.tenants) == 1
    with pytest.raises(TypeError):
        second.tenants["x"] = ()


def test_a_segment_that_is_replaced_is_served_on_by_who_has_it(store):
    store.add("a", some_documents(0))
    store.add("b", some_documents(1))
    seen = View(store.root, None)
    before = seen.snapshot
    store.remove("a", documents=["d0"])
    after = seen.refresh()
    assert opened(after)[1] == opened(before)[1]
    assert [len(segment) for segment in after.tenants[""]] == [2, 3]
    store.remove("a")
    store.remove("b")
    assert dict(seen.refresh().tenants) == {}
    assert before.tenants[""][0].document(0).tolist() == some_documents(0)[0].token_ids.tolist()


def test_bad_files_are_problems_reported_once_and_the_rest_serves(store, caplog):
    for i in range(3):
        store.add(f"c{i}", some_documents(i), tenant=f"t{i}")
    bad = store.root / "tenants" / "t-t0" / MANIFEST_FILE
    kept = bad.read_bytes()
    bad.write_bytes(kept[:-9])
    (torn,) = (store.root / "tenants" / "t-t1").glob("*.safetensors")
    overwrite(torn, torn.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, logger="specplug"):
        seen = View(store.root, TOKENIZER)
        assert [seen.refresh() for _ in range(3)] == [None] * 3
        assert len(caplog.records) == 2
    assert list(seen.snapshot.tenants) == ["t2"]
    assert [str(file) in problem for file, problem in zip([bad, torn], seen.snapshot.problems, strict=True)] == [
        True
    ] * 2
    bad.write_bytes(kept)
    store.remove("c1", tenant="t1")
    assert list(seen.refresh().tenants) == ["t0", "t2"]
    assert seen.snapshot.problems == ()


def test_a_segment_that_comes_back_is_seen_though_the_manifest_is_the_same(store):
    store.add("a", some_documents(0))
    (file,) = (store.root / "tenants" / "t-").glob("*.safetensors")
    kept = file.read_bytes()
    file.unlink()
    seen = View(store.root, TOKENIZER)
    assert (dict(seen.snapshot.tenants), len(seen.snapshot.problems)) == ({}, 1)
    file.write_bytes(kept)
    assert list(seen.refresh().tenants) == [""]


def test_a_segment_that_a_merge_deletes_just_now_is_no_problem(store, monkeypatch):
    """The manifest that was read names files that are gone: then there is a newer one."""
    store = Store(store.root)
    store.add("first", some_documents(3))
    real = tenants.load
    merged = []

    def slow(*arguments):
        manifest = real(*arguments)
        if not merged:
            merged.append(True)
            store.add("last", some_documents(4))
        return manifest

    monkeypatch.setattr(tenants, "load", slow)
    seen = View(store.root, TOKENIZER)
    assert seen.snapshot.problems == ()
    assert len(seen.snapshot.tenants[""]) == 1


def test_a_folder_that_is_gone_for_a_while_costs_nothing(store):
    store.add("a", some_documents(0))
    seen = View(store.root, TOKENIZER)
    folder = store.root / "tenants"
    folder.rename(store.root / "away")
    gone = seen.refresh()
    assert len(gone.problems) == 1
    assert seen.refresh() is None
    (store.root / "away").rename(folder)
    assert seen.refresh().problems == ()
    shutil.rmtree(folder / "t-")
    assert dict(seen.refresh().tenants) == {}


def test_each_change_has_another_stamp_however_quick(store):
    stamps = set()
    for i in range(20):
        store.add("a", some_documents(0, 1, 3))
        store.remove("a")
        about = os.stat(store.root / "tenants" / "t-" / MANIFEST_FILE)
        stamps.add(about.st_mtime_ns)
        assert len(stamps) == i + 1


def test_files_that_are_no_tenants_are_left_alone(store):
    store.add("a", some_documents(0))
    (store.root / "tenants" / ".DS_Store").write_bytes(b"x")
    (store.root / "tenants" / "t-file").write_bytes(b"x")
    (store.root / "tenants" / "t-empty").mkdir()
    (store.root / "tenants" / "other").mkdir()
    seen = View(store.root, TOKENIZER)
    assert (list(seen.snapshot.tenants), seen.snapshot.problems) == ([""], ())
    assert store.verify() == []


def test_many_look_while_others_change(tmp_path, store):
    """Each snapshot has all that was added before it began, and nothing that was removed before it began."""
    seen, errors, over = View(store.root, TOKENIZER), [], threading.Event()
    store.add("always", some_documents(0))
    seen.refresh()

    def look():
        try:
            while not over.is_set():
                seen.refresh()
                snapshot = seen.snapshot
                assert snapshot.problems == ()
                found = [
                    segment.corpora[segment.corpus_of[index]]
                    for segment in snapshot.tenants[""]
                    for index in range(len(segment))
                ]
                assert found.count("always") == 3
                assert all(found.count(name) == 3 for name in set(found))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(15):
        store.add(f"c{i}", some_documents(i))
        if i % 3 == 2:
            store.remove(f"c{i - 1}")
    over.set()
    for thread in threads:
        thread.join()
    assert errors == []
    seen.refresh()
    assert len(segment_files(tmp_path)) == len(seen.snapshot.tenants[""])
