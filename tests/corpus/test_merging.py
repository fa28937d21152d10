"""Merging changes the files, never the contents of a store, and any sequence of changes has its documented effect."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from specplug.corpus import merging
from specplug.corpus.manifest import CorpusPart, SegmentEntry, packed, unpacked
from specplug.corpus.merging import DEAD_SHARE, choose
from specplug.corpus.segment import Segment
from specplug.corpus.store import Store
from specplug.errors import CorpusError
from tests.corpus.tools import (
    TOKENIZER,
    Content,
    as_content,
    content,
    document,
    listed,
    new_store,
    segment_files,
    some_documents,
)


def entry(text: int, dead: int = 0) -> SegmentEntry:
    return SegmentEntry("f", 1, 1, text, text, (CorpusPart("c", 1, text - dead),))


@pytest.mark.parametrize(
    ("sizes", "run"),
    [
        ([], None),
        ([10] * 4, None),
        ([10] * 5, (0, 5)),
        ([100_000, 10, 10, 10, 10, 10], (1, 6)),
        ([10, 10, 10, 100_000, 10, 10], (0, 6)),
        ([100_000, 10, 10, 100_000, 10, 10], (0, 6)),
        ([900_000, 10, 10, 900_000, 10, 10, 10], None),
        ([900_000] * 9, None),
        ([10, 10, 900_000, *[10] * 6], (3, 9)),
    ],
)
def test_what_is_merged(sizes, run):
    assert choose([entry(size) for size in sizes], 1_000_000) == (run and slice(*run))


@pytest.mark.parametrize(("dead", "run"), [(0, None), (25, None), (26, slice(1, 2)), (100, slice(1, 2))])
def test_segments_with_much_that_is_dead_are_written_anew(dead, run):
    assert DEAD_SHARE == 0.25
    assert choose([entry(100), entry(100, dead), entry(900_000)], 1_000_000) == run


def test_full_segments_are_not_merged_again(tmp_path):
    store = new_store(tmp_path, segment_tokens=100)
    for i in range(12):
        store.add(f"c{i}", some_documents(i, 1, 15))
    before = content(tmp_path)
    store.merge()
    assert store.merge() == (0, 0)
    assert all(Segment(path).text.size <= 100 for path in segment_files(tmp_path))
    assert len(segment_files(tmp_path)) < 12
    assert content(tmp_path) == before
    assert store.verify() == []


def test_dead_text_is_gone_from_the_files_after_a_whole_merge(tmp_path):
    store, secret = new_store(tmp_path), np.array([77, 78, 79] * 5, np.int32)
    store.add("a", [document("secret name", secret, secret[1:]), *some_documents(0)])
    store.add("b", some_documents(1))
    store.remove("a", documents=["secret name"])
    assert any(secret.tobytes() in path.read_bytes() for path in segment_files(tmp_path))
    assert store.merge(whole=True) == (2, 1)
    assert store.merge(whole=True) == (0, 0)
    (file,) = segment_files(tmp_path)
    assert not any(part in file.read_bytes() for part in (secret.tobytes(), b"secret name"))
    assert content(tmp_path) == {"": {"a": as_content(some_documents(0)), "b": as_content(some_documents(1))}}


def test_prefixes_survive(tmp_path):
    store = new_store(tmp_path)
    texts = [[1, 2, 3], [4, 2], [5, 6, 7]]
    store.add("a", [document("d", *texts), document("e", [1])])
    store.add("b", [document("f", [2], [3])])
    store.merge(whole=True)
    (file,) = segment_files(tmp_path)
    assert Segment(file).text.tolist() == [-1, 1, 2, 3, -1, 4, 2, -1, 5, 6, 7, -1, 1, -1, 2, -1, 3, -1]
    assert Segment(file).starts.tolist() == [1, 12, 14, 18]


@pytest.mark.parametrize("whole", [False, True])
def test_what_changes_during_a_merge_is_not_undone(tmp_path, monkeypatch, whole):
    """Corpora and documents removed, and others added, while segments are merged."""
    store = new_store(tmp_path)
    for i in range(6):
        store.add(f"c{i}", some_documents(i))
    store.remove("c0", documents=["d0"])
    real, calls = merging.write_segments, []

    def slow(*arguments):
        entries = real(*arguments)
        calls.append(len(entries))
        if len(calls) == 1:
            store.remove("c1", documents=["d1"])
            store.remove("c0", documents=["d2"])
            store.add("new", some_documents(8))
        return entries

    monkeypatch.setattr(merging, "write_segments", slow)
    store.merge("", whole=whole)
    without = lambda seed, *names: [it for it in as_content(some_documents(seed)) if it[0] not in names]  # noqa: E731
    expected = {"c0": without(0, "d0", "d2"), "c1": without(1, "d1")}
    expected |= {f"c{i}": without(i) for i in (2, 3, 4, 5)} | {"new": without(8)}
    assert content(tmp_path) == {"": expected}
    store.merge("", whole=True)
    assert content(tmp_path) == {"": expected}
    assert len(segment_files(tmp_path)) == 1
    assert store.verify() == []


def test_a_segment_that_goes_away_during_a_merge_begins_it_again(tmp_path, monkeypatch):
    store = new_store(tmp_path)
    for i in range(3):
        store.add(f"c{i}", some_documents(i))
    real, calls = merging.write_segments, []

    def slow(*arguments):
        calls.append(1)
        if len(calls) == 1:
            store.remove("c1")
        return real(*arguments)

    monkeypatch.setattr(merging, "write_segments", slow)
    assert store.merge("", whole=True) == (2, 1)
    assert len(calls) == 2
    assert content(tmp_path) == {"": {name: as_content(some_documents(int(name[1]))) for name in ("c0", "c2")}}
    assert len(segment_files(tmp_path)) == 1


def test_everything_removed_during_a_merge_leaves_nothing(tmp_path, monkeypatch):
    store = new_store(tmp_path)
    store.add("a", some_documents(0))
    store.remove("a", documents=["d0"])
    real = merging.write_segments

    def slow(*arguments):
        entries = real(*arguments)
        store.remove("a")
        return entries

    monkeypatch.setattr(merging, "write_segments", slow)
    assert store.merge("") == (0, 0)
    assert store.list() == segment_files(tmp_path) == []


def test_a_broken_tenant_does_not_keep_others_from_being_merged(tmp_path, caplog):
    store = new_store(tmp_path)
    for tenant in ("a", "b"):
        for i in range(2):
            store.add(f"c{i}", some_documents(i), tenant=tenant)
    (store.root / "tenants" / "t-a" / "manifest.json").write_bytes(b"{")
    assert store.merge(whole=True) == (2, 1)
    assert "t-a/manifest.json" in caplog.text


def test_two_who_merge_at_once_do_it_once(tmp_path):
    store = new_store(tmp_path)
    for i in range(8):
        store.add(f"c{i}", some_documents(i))
    before, done = content(tmp_path), []
    threads = [threading.Thread(target=lambda: done.append(store.merge())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [(0, 0), (0, 0), (8, 1)]
    assert content(tmp_path) == before


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_masks_are_kept(size):
    mask = (np.random.default_rng(size).random(size) < 0.5).astype(np.uint8)
    assert unpacked(packed(mask), size).tolist() == mask.tolist()
    assert packed(np.zeros(size, np.uint8)) == ""
    assert unpacked("", size).tolist() == [0] * size


def _sorted(content: Content) -> Content:
    return {tenant: {name: sorted(them) for name, them in corpora.items()} for tenant, corpora in content.items()}


class Changes(RuleBasedStateMachine):
    """A store beside a dict of lists."""

    names = st.sampled_from(["a", "b", "c", "d"])
    tenants = st.sampled_from(["", "other"])

    @initialize(folder=st.none(), size=st.sampled_from([40, 70, 10_000]))
    def begin(self, folder, size):
        self.root = self.make_folder()
        self.store, self.size = new_store(self.root, segment_tokens=size), size
        self.model: Content = {}

    @rule(tenant=tenants, name=names, seed=st.integers(0, 99), count=st.integers(0, 4), extend=st.booleans())
    def add(self, tenant, name, seed, count, extend):
        documents = some_documents(seed, count, 6)
        if count and (extend or name not in self.model.get(tenant, {})):
            self.store.add(name, documents, tenant=tenant, extend=extend)
            there = self.model.setdefault(tenant, {}).setdefault(name, [])
            there.extend([document for document in as_content(documents) if document not in there])
        else:
            with pytest.raises(CorpusError):
                self.store.add(name, documents, tenant=tenant, extend=extend)

    @rule(tenant=tenants, name=names, seed=st.integers(0, 99), count=st.integers(1, 4))
    def sync(self, tenant, name, seed, count):
        documents = some_documents(seed, count, 6)
        before = self.model.get(tenant, {}).get(name, [])
        done = self.store.sync(name, documents, tenant=tenant)
        assert done.added + done.replaced + done.unchanged == done.documents == count
        assert done.unchanged + done.replaced + done.removed == len(before)
        unchanged = [it for it in before if it in as_content(documents)]
        new = [it for it in as_content(documents) if it not in before]
        self.model.setdefault(tenant, {}).pop(name, None)
        self.model[tenant][name] = sorted(unchanged + new)

    @rule(tenant=tenants, name=names)
    def remove(self, tenant, name):
        if name in self.model.get(tenant, {}):
            gone = self.model[tenant].pop(name)
            assert self.store.remove(name, tenant=tenant) == (len(gone), sum(len(ids) for _, ids in gone))
        else:
            with pytest.raises(CorpusError):
                self.store.remove(name, tenant=tenant)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def remove_documents(self, data):
        tenant = data.draw(st.sampled_from([tenant for tenant, corpora in self.model.items() if corpora]))
        name = data.draw(st.sampled_from(sorted(self.model[tenant])))
        names = data.draw(st.lists(st.sampled_from([one for one, _ in self.model[tenant][name]]), min_size=1))
        self.store.remove(name, documents=names, tenant=tenant)
        self.model[tenant][name] = [it for it in self.model[tenant][name] if it[0] not in names]
        if not self.model[tenant][name]:
            del self.model[tenant][name]

    @rule(tenant=st.none() | tenants, whole=st.booleans())
    def merge(self, tenant, whole):
        self.store.merge(tenant, whole=whole)

    @rule()
    def reopen(self):
        self.store = Store(self.root / "store", TOKENIZER, segment_tokens=self.size)

    @invariant()
    def the_store_is_what_the_model_is(self):
        model = {tenant: corpora for tenant, corpora in self.model.items() if corpora}
        found = content(self.root)
        assert _sorted(found) == _sorted(model)
        assert listed(self.store) == {
            (tenant, name): (len(documents), sum(len(ids) for _, ids in documents))
            for tenant, corpora in model.items()
            for name, documents in corpora.items()
        }

    def teardown(self):
        if hasattr(self, "store"):
            assert self.store.verify() == []


def test_any_sequence_of_changes(tmp_path_factory):
    class Here(Changes):
        make_folder = staticmethod(lambda: tmp_path_factory.mktemp("changes"))

    run_state_machine_as_test(Here, settings=settings(max_examples=25, stateful_step_count=15, deadline=None))
