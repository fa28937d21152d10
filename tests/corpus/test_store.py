"""The store: what is added is there, what is removed is not, syncing, and nothing else changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from specplug.corpus.manifest import MANIFEST_FILE
from specplug.corpus.segment import Segment
from specplug.corpus.store import Store
from specplug.corpus.view import View
from specplug.errors import CorpusError
from tests.corpus.tools import (
    OTHER,
    TOKENIZER,
    as_content,
    content,
    document,
    listed,
    new_store,
    segment_files,
    some_documents,
)


def test_an_empty_store(tmp_path):
    store = new_store(tmp_path)
    assert store.list() == store.list("") == store.list("nobody") == store.verify() == []
    assert content(tmp_path) == {}


def test_what_is_added_is_there(tmp_path):
    store, documents = new_store(tmp_path), some_documents(0)
    reported = []
    added = store.add("c", [*documents, document("empty", [])], progress=lambda *counts: reported.append(counts))
    assert added == (3, 60, 1, 1, segment_files(tmp_path)[0].stat().st_size, 0, 0)
    assert reported == [(1, 20), (2, 40), (3, 60)]
    assert store.list() == [("", "c", 3, 60, added.bytes)]
    assert content(tmp_path) == {"": {"c": as_content(documents)}}
    assert Store(tmp_path / "store").list() == store.list()
    assert store.verify() == []


def test_a_large_corpus_becomes_several_segments_at_once(tmp_path):
    store, documents = new_store(tmp_path, segment_tokens=100), some_documents(0, 30)
    added = store.add("c", documents)
    assert added.segments == len(segment_files(tmp_path)) > 5
    assert all(Segment(path).text.size <= 100 for path in segment_files(tmp_path))
    assert content(tmp_path) == {"": {"c": as_content(documents)}}
    assert store.list()[0].bytes == added.bytes
    assert store.document("d29").tolist() == documents[29].token_ids.tolist()


def test_too_much_text_is_refused_before_it_is_all_read(tmp_path):
    store, taken = new_store(tmp_path), []

    def endless():
        while True:
            taken.append(1)
            yield document("d", [1] * 10)

    with pytest.raises(CorpusError, match=r"found 30 tokens or more beside 0 that it has; expected max_tokens 25"):
        store.add("c", endless(), max_tokens=25)
    assert len(taken) == 3


def test_the_newest_document_of_a_name_is_found(tmp_path):
    store = new_store(tmp_path)
    for i in range(12):
        store.add(f"c{i}", [document("same", [i] * 3), document(f"own {i}", [50 + i])])
        assert store.document("same").tolist() == [i] * 3
        assert store.document("same", corpus="c0").tolist() == [0] * 3
    assert len(segment_files(tmp_path)) <= 5
    store.remove("c11")
    assert store.document("same").tolist() == [10] * 3
    store.remove("c10", documents=["same"])
    assert store.document("same").tolist() == [9] * 3
    assert not store.document("same").flags.writeable


def test_a_store_is_of_one_tokenizer(tmp_path):
    new_store(tmp_path).add("c", some_documents(0))
    both = r"of another tokenizer; found 'letters' \(a1.*expected 'words' \(b2"
    for make in (Store.create, Store):
        with pytest.raises(CorpusError, match=both):
            make(tmp_path / "store", OTHER)
        assert len(make(tmp_path / "store", TOKENIZER).list()) == 1
        assert make(tmp_path / "store", TOKENIZER._replace(name="renamed")).tokenizer == TOKENIZER


def test_a_store_is_made_in_an_empty_folder_only(tmp_path):
    (tmp_path / "letter.txt").write_text("Dear")
    with pytest.raises(CorpusError, match=r"something else in it.*found letter.txt"):
        Store.create(tmp_path, TOKENIZER)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(CorpusError, match="no corpus store"):
        Store(tmp_path)
    with pytest.raises(CorpusError, match="could not be written"):
        Store.create(tmp_path / "letter.txt", TOKENIZER)
    Store.create(tmp_path / "a" / "b", TOKENIZER)


@pytest.mark.parametrize("size", [0, 3, 2**31])
def test_impossible_sizes_are_refused(tmp_path, size):
    with pytest.raises(CorpusError, match="segment_tokens: a wrong size"):
        new_store(tmp_path, segment_tokens=size)


def test_tokens_take_their_bytes_and_little_more(tmp_path):
    store = new_store(tmp_path)
    rng = np.random.default_rng(0)
    added = store.add("c", (document(f"some/path/{i}.py", rng.integers(0, 90, 500)) for i in range(200)))
    assert added.bytes / added.tokens < 8.5


OLD = [document("same", [1, 2, 3], [4, 5]), document("changed", [6] * 4), document("gone", [7] * 5)]
NEW = [document("same", [1, 2, 3], [4, 5]), document("changed", [8] * 6), document("new", [9] * 7)]


def sees(root: Path) -> list[tuple[str, list[int]]]:
    return sorted(content(root)[""]["c"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = new_store(tmp_path)
    store.add("c", OLD)
    for name in ("other", "x", "y", "z"):
        store.add(name, OLD)  # all in one segment
    for name in ("x", "y", "z"):
        store.remove(name)
    return store


def test_what_did_not_change_is_not_written_again(tmp_path, store):
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert store.sync("c", OLD) == (0, 0, 0, 3, 0, 3, 12, 0, 0)
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert {**files, "lock": 0} == {**before, "lock": 0}
    # An opening that changed is a change, though the body is the same.
    assert store.sync("c", [OLD[0]._replace(prefixes=()), *OLD[1:]]).replaced == 1
    assert sees(tmp_path) == sorted(as_content(OLD))


def test_readers_see_the_old_documents_or_the_new_ones(tmp_path, store, monkeypatch):
    """This holds at each rename and while documents are read, as one manifest is replaced."""
    seen, manifests, replace = View(store.root, TOKENIZER), [], os.replace

    def looked() -> list[tuple[str, list[int]]]:
        seen.refresh()
        return sorted(
            (segment.name(at), segment.document(at).tolist())
            for segment in seen.snapshot.tenants[""]
            for at in range(len(segment))
            if segment.corpora[segment.corpus_of[at]] == "c"
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


def gone(*documents):
    """Yield documents, and then fail."""
    yield from documents
    raise OSError("the source is gone")


ADD, SYNC, REMOVE = Store.add, Store.sync, Store.remove
THERE = "corpus 'c': a corpus of this name is there already. Remove it first"
REFUSED = [
    (ADD, "c", some_documents(1), {}, THERE),
    (ADD, "new", [], {}, "nothing to add; found no documents"),
    (ADD, "new", [document("a", []), document("b", [])], {}, "found 2 documents, all of them empty"),
    (ADD, "new", some_documents(1), {"max_tokens": 83}, "too much text for one tenant"),
    (ADD, "new", [document("a", [1] * 99)], {}, "document 'a': a document is too large.*fewer than 100. Split it"),
    (ADD, "new", [document("a", [100])], {}, "document 'a': not the tokens of a document; found id 100"),
    (ADD, "new", gone, {}, "the source is gone"),
    (SYNC, "c", [], {}, "no documents to bring the corpus up to date with.*remove it"),
    (SYNC, "c", [document("a", [])], {}, "found 1 documents, all of them empty"),
    (SYNC, "c", gone, {}, "the source is gone"),
    (SYNC, "c", NEW, {"max_tokens": 27}, "too much text for one tenant"),  # 12 of the other corpus, 16 of this one
    *((change, "new", [document(name, [1])], {}, "not a name for a document") for change in (ADD, SYNC)
      for name in ("", "a\nb", "a\0", "x" * 1025, "\udc80", 7)),
    (REMOVE, "d", None, {}, "no such corpus; found 'd'. Known: c, other"),
    (REMOVE, "othre", None, {}, "no such corpus; found 'othre'. Did you mean 'other'"),
    (REMOVE, "othre", ["same"], {}, "no such corpus; found 'othre'. Did you mean 'other'"),
    (REMOVE, "c", ["same", "new"], {}, "corpus 'c': no such document; found 'new'"),
    (REMOVE, "c", None, {"tenant": "t"}, "tenant 't': no such corpus; found 'c'. Known: none"),
    (Store.document, "caf\udce9", None, {}, r"no such document; found 'caf\\udce9'"),
    (Store.document, "sane", None, {}, "no such document; found 'sane'. Did you mean 'same'"),
    (Store.document, "new", None, {"corpus": "c"}, "corpus 'c': no such document; found 'new'"),
    (Store.document, "same", None, {"corpus": "othre"}, "no such corpus; found 'othre'. Did you mean 'other'"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "name", "documents", "options", "message"), REFUSED)
def test_what_is_refused_changes_nothing(tmp_path, store, ask, name, documents, options, message):
    store = Store(store.root, segment_tokens=100)
    before = content(tmp_path), listed(store), segment_files(tmp_path)
    documents = gone(*some_documents(1, 20)) if documents is gone else documents
    given = {} if documents is None else {"documents": documents}
    with pytest.raises((CorpusError, OSError), match=message):
        ask(store, name, **given, **options)
    assert (content(tmp_path), listed(store), segment_files(tmp_path)) == before
    assert {path.suffix for path in segment_files(tmp_path)[0].parent.iterdir()} == {".safetensors", ".json", ""}
    assert not (store.root / "tenants" / "t-t").exists()


def test_a_limit_counts_what_is_there_afterwards(store):
    assert store.sync("c", NEW, max_tokens=28).documents == 3
    assert store.add("new", some_documents(1), max_tokens=88).tokens == 60
