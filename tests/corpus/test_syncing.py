"""Bringing a corpus up to date: afterwards it has what its sources have, and readers see that at once."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from specplug.corpus.documents import Document
from specplug.corpus.layout import MANIFEST_FILE
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.errors import CorpusError
from tests.corpus.tools import (  # noqa: F401 - quick_disk is used by all tests
    TOKENIZER,
    as_content,
    content,
    document,
    listed,
    new_store,
    quick_disk,
    segment_files,
    some_documents,
)

OLD = [document("same", [1, 2, 3], [4, 5]), document("changed", [6] * 4), document("gone", [7] * 5)]
NEW = [document("same", [1, 2, 3], [4, 5]), document("changed", [8] * 6), document("new", [9] * 7)]


def sees(root: Path) -> list[tuple[str, list[int]]]:
    return sorted(content(root)[""]["c"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path)
    store.add("c", OLD)
    store.add("other", OLD)
    store.merge("", whole=True)  # both in one segment
    return store


def test_what_is_new_changed_or_gone_is_added_replaced_or_removed(tmp_path, store):
    done = store.sync("c", [*NEW, document("empty", [])])
    assert done[:7] == (1, 1, 1, 1, 1, 3, 16)
    assert (done.segments, done.bytes > 0) == (1, True)
    assert sees(tmp_path) == sorted(as_content(NEW))
    assert content(tmp_path)[""]["other"] == as_content(OLD)
    assert listed(store) == {("", "other"): (3, 12), ("", "c"): (3, 16)}
    assert store.verify() == []


def test_what_did_not_change_is_not_written_again(tmp_path, store):
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert store.sync("c", OLD) == (0, 0, 0, 3, 0, 3, 12, 0, 0)
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    locks = ("lock", "merging")
    assert {name: at for name, at in files.items() if name not in locks} == {
        name: at for name, at in before.items() if name not in locks
    }
    # An opening that changed is a change, though the body is the same.
    assert store.sync("c", [OLD[0]._replace(prefixes=()), *OLD[1:]]).replaced == 1
    assert sees(tmp_path) == sorted(as_content(OLD))


def test_a_corpus_that_is_not_there_is_built(tmp_path):
    store = new_store(tmp_path)
    assert store.sync("c", NEW, tenant="acme")[:7] == (3, 0, 0, 0, 0, 3, 16)
    assert content(tmp_path) == {"acme": {"c": as_content(NEW)}}


def test_of_equal_documents_as_many_stay_as_there_are(tmp_path):
    store = new_store(tmp_path)
    twice = [document("a", [1, 2]), document("a", [1, 2]), document("a", [3])]
    store.add("c", twice)
    assert store.sync("c", twice)[:4] == (0, 0, 0, 3)
    assert store.sync("c", twice[:1])[:4] == (0, 0, 2, 1)
    assert store.sync("c", [*twice, *twice[:1]])[:4] == (3, 0, 0, 1)
    assert sees(tmp_path) == sorted(as_content([*twice, *twice[:1]]))


@pytest.mark.parametrize("seed", range(6))
def test_any_documents_may_follow_any_others(tmp_path, seed):
    store, chance = new_store(tmp_path, segment_tokens=60), random.Random(seed)
    for step in range(5):
        documents = [
            document(f"d{chance.randrange(6)}", [chance.randrange(3) for _ in range(chance.randrange(1, 4))])
            for _ in range(chance.randrange(1, 12))
        ]
        before = sees(tmp_path) if step else []
        done = store.sync("c", documents)
        assert sees(tmp_path) == sorted(as_content(documents))
        assert done.added + done.replaced + done.unchanged == done.documents == len(documents)
        assert done.unchanged + done.replaced + done.removed == len(before)
        if chance.random() < 0.5:
            store.merge("", whole=chance.random() < 0.5)
    assert store.verify() == []


def test_readers_see_the_old_documents_or_the_new_ones(tmp_path, store, monkeypatch):
    """This holds at each rename and while documents are read, as one manifest is replaced."""
    seen, manifests, replace = View(store.root, TOKENIZER), [], os.replace

    def looked() -> list[tuple[str, list[int]]]:
        seen.refresh()
        return sorted(
            (live.segment.name(at), live.segment.document(at).tolist())
            for live in seen.snapshot.tenants[""]
            for at in range(len(live.segment))
            if (live.dead is None or not live.dead[at]) and live.segment.corpora[live.segment.corpus_of[at]] == "c"
        )

    def renamed(source, target):
        assert looked() == sorted(as_content(OLD))
        replace(source, target)
        if Path(target).name == MANIFEST_FILE:
            manifests.append(looked())
        else:
            assert looked() == sorted(as_content(OLD))

    monkeypatch.setattr(os, "replace", renamed)
    store.sync("c", (each for each in NEW if looked() == sorted(as_content(OLD))))
    assert manifests == [sorted(as_content(NEW))]


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.add("c", [document("z", [5])], extend=True),
        lambda store: store.remove("c", documents=["gone"]),
        lambda store: store.remove("c"),
    ],
    ids=["added", "removed", "all removed"],
)
def test_what_others_do_to_the_corpus_meanwhile_is_not_undone(tmp_path, store, change):
    def documents():
        yield NEW[0]
        change(store)
        yield from NEW[1:]

    with pytest.raises(CorpusError, match="another process changed the corpus meanwhile"):
        store.sync("c", documents())
    assert content(tmp_path)[""].get("c", []) != as_content(NEW)
    store.sync("c", NEW)
    assert sees(tmp_path) == sorted(as_content(NEW))


def test_what_others_do_to_other_corpora_meanwhile_stays(tmp_path, store):
    def documents():
        yield NEW[0]
        store.remove("other", documents=["gone"])
        store.add("third", OLD)
        yield from NEW[1:]

    store.sync("c", documents())
    assert sees(tmp_path) == sorted(as_content(NEW))
    assert content(tmp_path)[""]["other"] == as_content(OLD[:2])
    assert content(tmp_path)[""]["third"] == as_content(OLD)
    assert store.verify() == []


def test_what_is_refused_changes_nothing(tmp_path, store):
    def broken():
        yield NEW[0]
        raise OSError("the source is gone")

    def too_many():
        yield from NEW

    for documents, most, error, message in [
        ([], None, CorpusError, "no documents to bring the corpus up to date with.*remove it"),
        ([document("a", [])], None, CorpusError, "found 1 documents, all of them empty"),
        (broken(), None, OSError, "the source is gone"),
        (too_many(), 27, CorpusError, "too much text for one tenant"),  # 12 of the other corpus, 16 of this one
        ([Document("a\0", OLD[0].token_ids)], None, CorpusError, "not a name for a document"),
    ]:
        with pytest.raises(error, match=message):
            store.sync("c", documents, max_tokens=most)
        assert sees(tmp_path) == sorted(as_content(OLD))
        assert len(segment_files(tmp_path)) == 1
    assert store.sync("c", NEW, max_tokens=28).documents == 3


def test_extending_twice_doubles_nothing(tmp_path):
    store = new_store(tmp_path)
    documents = some_documents(0)
    store.add("c", documents)
    for _ in range(2):
        done = store.add("c", documents, extend=True)
        assert (done.documents, done.present, done.segments) == (0, 3, 0)
    changed = [documents[0], document("d1", [3] * 9), document("d9", [3] * 9)]
    done = store.add("c", changed, extend=True)
    assert (done.documents, done.present, done.same_name) == (2, 1, 1)
    assert sees(tmp_path) == sorted(as_content([*documents, *changed[1:]]))
