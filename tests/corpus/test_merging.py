"""Segments stay few and hold nothing that was removed, and any sequence of changes has its documented effect."""

from __future__ import annotations

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

from specplug.corpus.documents import Document
from specplug.corpus.manifest import CorpusPart, SegmentEntry, load
from specplug.corpus.segment import Segment, write_segment
from specplug.corpus.segment_arrays import Builder, documents_of, remaining
from specplug.corpus.store import Store
from specplug.corpus.writing import choose
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


def entry(text: int) -> SegmentEntry:
    return SegmentEntry("f", 1, text, (CorpusPart("c", 1, text),))


@pytest.mark.parametrize(
    ("sizes", "run"),
    [
        ([], None),
        ([10], None),
        ([10] * 5, (0, 5)),
        ([100_000, 10, 10], (1, 3)),
        ([400_000, 100_000, 30_000, 9_000], None),
        ([400_000, 100_000, 40_000, 20_000], (0, 4)),
        ([10, 100_000, 10], (0, 2)),
        ([900_000, 10, 10, 900_000, 10], (1, 3)),
        ([900_000, 10, 900_000, 10], None),
        ([900_000] * 9, None),
        ([400_000, 400_000, 400_000], (1, 3)),
        ([90_000] * 12 + [10], (1, 12)),
    ],
)
def test_what_is_merged(sizes, run):
    assert choose([entry(size) for size in sizes], 1_000_000) == (run and slice(*run))


def test_few_texts_are_written_again():
    """Of 10,000 equal additions, 7 segments are left at most, and each text is written again 11 times."""
    entries = []
    written = 0
    for _ in range(10_000):
        entries.append(entry(5000))
        while (run := choose(entries, 1 << 30)) is not None:
            entries[run] = [entry(sum(it.text for it in entries[run]))]
            written += entries[run.start].text
        assert len(entries) <= 7
    assert written < 12 * 5000 * 10_000


def test_few_segments_are_left_and_full_ones_stay(tmp_path):
    store = new_store(tmp_path, segment_tokens=100)
    for i in range(40):
        store.add(f"c{i}", some_documents(i, 1, 15))
        sizes = [Segment(path).text.size for path in segment_files(tmp_path)]
        assert max(sizes) <= 100
        assert sum(size <= 50 for size in sizes) <= 4
    assert content(tmp_path) == {"": {f"c{i}": as_content(some_documents(i, 1, 15)) for i in range(40)}}
    assert store.verify() == []


def test_what_is_removed_is_in_no_file(tmp_path):
    store, secret = new_store(tmp_path), np.array([77, 78, 79] * 5, np.int32)
    hidden = document("secret name", secret, secret[1:])
    parts = (secret.tobytes(), b"secret name")

    def has_it() -> bool:
        return any(part in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() for part in parts)

    for remove in (
        lambda: store.remove("a", documents=["secret name"]),
        lambda: store.sync("a", some_documents(0)),
        lambda: store.remove("a"),
    ):
        store.add("a", [hidden, *some_documents(0)])
        for i in range(4):
            store.add(f"b{i}", some_documents(i))
        assert len(segment_files(tmp_path)) == 1
        assert has_it()
        remove()
        assert not has_it()
        for name in {info.name for info in store.list()}:
            store.remove(name)


def test_prefixes_survive(tmp_path):
    store = new_store(tmp_path)
    texts = [[1, 2, 3], [4, 2], [5, 6, 7]]
    store.add("a", [document("d", *texts), document("e", [1])])
    for name, ids in (("b", [2]), ("c", [8]), ("d", [9]), ("e", [7])):
        store.add(name, [document("f", ids, [3])])
    store.remove("c")
    (file,) = segment_files(tmp_path)
    text = [-1, 1, 2, 3, -1, 4, 2, -1, 5, 6, 7, -1, 1, -1, 2, -1, 3, -1, 9, -1, 3, -1, 7, -1, 3, -1]
    assert Segment(file).text.tolist() == text
    assert Segment(file).starts.tolist() == [1, 12, 14, 18, 22, 26]


@pytest.mark.parametrize("seed", range(20))
def test_what_remains_of_a_segment_is_what_is_built_of_it(tmp_path, seed):
    """`remaining` sorts nothing, and is equal to the arrays that are built and sorted anew."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    for _ in range(rng.integers(1, 12)):
        texts = [rng.integers(0, 3, rng.integers(1, 30)).astype(np.int32) for _ in range(rng.integers(1, 4))]
        builder.append("abc"[rng.integers(3)], f"name {rng.integers(5)}".encode() * int(rng.integers(1, 3)), texts)
    path = tmp_path / "segment.safetensors"
    write_segment(path, builder.sections(), builder.corpora, TOKENIZER)
    segment = Segment(path)
    kept = rng.random(len(segment)) < rng.random()
    kept[rng.integers(len(segment))] = True
    anew = Builder()
    for index, it in enumerate(documents_of(segment)):
        if kept[index]:
            anew.append(*it)
    sections, corpora = remaining(segment, kept)
    assert corpora == anew.corpora
    for name, expected in anew.sections().items():
        assert sections[name].tolist() == expected.tolist(), name


def _sorted(content: Content) -> Content:
    return {tenant: {name: sorted(them) for name, them in corpora.items()} for tenant, corpora in content.items()}


def numbered(number: int, count: int) -> list[Document]:
    """Return documents of 6 tokens each that equal no other number's."""
    return [it._replace(token_ids=np.append(it.token_ids, number)) for it in some_documents(number, count, 5)]


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
        documents = numbered(seed, count)
        if count and (extend or name not in self.model.get(tenant, {})):
            done = self.store.add(name, [document("empty", []), *documents], tenant=tenant, extend=extend)
            there = self.model.setdefault(tenant, {}).setdefault(name, [])
            new = [each for each in as_content(documents) if each not in there]
            known = {each for each, _ in there}
            assert (done.documents, done.tokens, done.empty) == (len(new), 6 * len(new), 1)
            assert (done.present, done.same_name) == (count - len(new), sum(each in known for each, _ in new))
            there.extend(new)
        else:
            with pytest.raises(CorpusError):
                self.store.add(name, documents, tenant=tenant, extend=extend)

    @rule(tenant=tenants, name=names, seed=st.integers(0, 99), count=st.integers(1, 4))
    def sync(self, tenant, name, seed, count):
        documents = numbered(seed, count)
        before = self.model.get(tenant, {}).get(name, [])
        done = self.store.sync(name, [*documents, document("empty", [])], tenant=tenant)
        unchanged = [it for it in before if it in as_content(documents)]
        new = [it for it in as_content(documents) if it not in before]
        stale = [it for it in before if it not in unchanged]
        replaced = len({one for one, _ in new} & {one for one, _ in stale})
        removed = len(stale) - replaced
        assert done[:7] == (len(new) - replaced, replaced, removed, len(unchanged), 1, count, 6 * count)
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
        gone = [it for it in self.model[tenant][name] if it[0] in names]
        found = self.store.remove(name, documents=names, tenant=tenant)
        assert found == (len(gone), sum(len(ids) for _, ids in gone))
        self.model[tenant][name] = [it for it in self.model[tenant][name] if it not in gone]
        if not self.model[tenant][name]:
            del self.model[tenant][name]

    @rule()
    def reopen(self):
        self.store = Store(self.root / "store", TOKENIZER, segment_tokens=self.size)

    @invariant()
    def the_store_is_what_the_model_is(self):
        model = {tenant: corpora for tenant, corpora in self.model.items() if corpora}
        found = content(self.root)
        assert _sorted(found) == _sorted(model)
        folders = self.store.root.glob("tenants/*")
        assert {path.name for path in segment_files(self.root)} == {name for it in folders for name in load(it).files()}
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
