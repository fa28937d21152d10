"""The retrieval proposers: n-gram drafts without corpora, and what corpora from any source add."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specplug_ngram.plugin
import specplug_retrieval.plugin
from specplug.corpus.documents import Document
from specplug.corpus.store import Store
from specplug.errors import CorpusError
from specplug.interfaces import PluginContext
from specplug.plugins.registry import Owner, Registry
from specplug.plugins.specs import ProposerSpec
from specplug.settings.model import CorporaSettings
from specplug.testing.batches import RowDraft
from specplug.testing.driver import Driver
from specplug.text.fingerprint import Fingerprint, fingerprint
from specplug.types.caps import EngineCaps
from specplug.types.request import RequestOptions, StoredDocument
from specplug_retrieval import proposer
from specplug_retrieval.proposer import Retrieval
from tests.corpus.tools import overwrite
from tests.proposers.lookup_contract import LookupContract, on_engine

TEXT = list(range(10, 30))
BEGIN = TEXT[:5]
NEVER = CorporaSettings(poll_seconds=3600)


class Letters:
    """A tokenizer: printable characters, from 0."""

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [min(max(ord(character) - 32, 0), 95) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(token + 32) for token in ids)

    def __len__(self) -> int:
        return 96


def spec(name: str = "retrieval", *, trees: bool = False) -> ProposerSpec:
    registry = Registry()
    registry.add(specplug_retrieval.plugin, Owner("retrieval", "specplug", "test"))
    registry.add(specplug_ngram.plugin, Owner("ngram", "specplug", "test"))
    return on_engine(registry.get(ProposerSpec, name), trees=trees)


class TestContract(LookupContract):
    spec = spec("retrieval")
    proposer = Retrieval


class TestTreeContract(TestContract):
    """All clauses hold where most of the drafts are a corpus's, too."""

    spec = spec("retrieval", trees=True)

    @pytest.fixture(autouse=True)
    def _load(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        store = Store.create(tmp_path / "store", fingerprint(Letters()))
        put(store, "one", [*range(60, 10, -1)])
        put(store, "two", [1, 2, 3, 4, 8, 8, 8, 5, 9, 12, 7])
        monkeypatch.setattr(proposer, "CorporaSettings", lambda: settings_of(store))


# -- a proposer, its corpora, and what it drafts -----------------------------------------------------------------------


class Server:
    """A proposer as a server builds it, and one request after another."""

    def __init__(self, corpora: CorporaSettings, *, trees: bool = False, tokenizer: Any = None) -> None:
        self.spec = spec(trees=trees)
        built: list[Retrieval] = []

        def factory(context: PluginContext) -> Retrieval:
            own = replace(context, sections={"corpora": corpora}, target_tokenizer=tokenizer)
            built.append(Retrieval(own))
            return built[0]

        self.driver = Driver(replace(self.spec, factory=factory), vocab_size=64)
        (self.proposer,) = built
        self.watcher = self.proposer.watcher
        self.store = None if corpora.store is None else Store(corpora.store)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_error: object) -> None:
        self.driver.close()

    def add(self, name: str, *texts: list[int]) -> None:
        put(self.store, name, *texts)
        self.watcher._look()

    def remove(self, name: str) -> None:
        self.store.remove(name)
        self.watcher._look()

    def corpora(self) -> dict[str, int]:
        return self.proposer.status()["tenants"].get("", {})

    def ask(
        self, begin: list[int] = BEGIN, *, tenant: str | None = None, documents: Any = (), corpora: Any = ()
    ) -> RowDraft:
        options = RequestOptions(documents=tuple(documents), corpora=tuple(corpora))
        self.driver.start("requested", begin, tenant=tenant, options=options)
        draft = self.driver.step(6, order=["requested"]).by_request()["requested"]
        self.driver.leave("requested", None)
        return draft

    def source(self, draft: RowDraft) -> str | None:
        return self.proposer.sources[draft.source[0]] if draft.source else None


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of `Letters`."""
    return Store.create(tmp_path / "store", fingerprint(Letters()))


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    with opened(store) as made:
        yield made


def settings_of(store: Store) -> CorporaSettings:
    return NEVER.model_copy(update={"store": str(store.root)})


def put(store: Store, corpus: str, *texts: list[int], tenant: str = "") -> None:
    documents = [Document(f"d{number}", np.array(text, np.int32)) for number, text in enumerate(texts)]
    store.add(corpus, documents, tenant=tenant)


def opened(store: Store, *, trees: bool = False, **changes: Any) -> Server:
    return Server(settings_of(store).model_copy(update=changes), trees=trees, tokenizer=Letters())


def nodes(draft: RowDraft) -> set[int]:
    return set(draft.token_ids)


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@pytest.mark.parametrize("trees", [False, True])
def test_without_corpora_drafts_are_those_of_ngram(trees: bool) -> None:
    found, plain = (spec(name, trees=trees) for name in ("retrieval", "ngram"))
    with Driver(found, vocab_size=64) as own, Driver(plain, vocab_size=64) as other:

        @settings(max_examples=40)
        @given(text=texts, references=st.lists(texts, max_size=2), more=st.lists(texts, max_size=4))
        def alike(text: list[int], references: list[list[int]], more: list[list[int]]) -> None:
            for driver in (own, other):
                driver.start("a", text, references=references)
            for new in [*more, []]:
                drafts = [driver.step(6).by_request()["a"] for driver in (own, other)]
                assert drafts[0] == drafts[1]
                for driver in (own, other):
                    driver.extend("a", new[:5])
            for driver in (own, other):
                driver.leave("a")

        alike()


@pytest.mark.parametrize("trees", [False, True])
def test_a_corpus_is_drafted_until_it_is_removed(trees: bool, store: Store) -> None:
    with opened(store, trees=trees) as server:
        assert server.ask().token_ids == ()
        server.add("texts", TEXT, [40, 41])
        draft = server.ask()
        assert (server.source(draft), draft.token_ids[:6]) == ("corpus", tuple(TEXT[5:11]))
        assert server.corpora() == {"texts": len(TEXT) + 2}
        server.remove("texts")
        assert server.corpora() == {}
        assert server.ask().token_ids == ()


def test_without_a_store_there_are_no_corpora() -> None:
    with Server(NEVER) as server:
        assert server.ask(documents=[StoredDocument("d0")]).token_ids == ()
        status = server.proposer.status()
        assert (status["store"], status["tenants"], status["segments"], status["unknown_documents"]) == (None, {}, 0, 1)


def watch(watcher: proposer.StoreWatcher, times: int = 1) -> None:
    """Let a watch that has not begun look at its store so many times, and end."""
    ends = iter([False] * times + [True])
    watcher._ended.wait = lambda _seconds: next(ends)  # type: ignore[method-assign]
    watcher._watch()


def test_a_store_that_cannot_be_read_for_a_while_serves_on_and_says_so(store: Store, caplog: Any) -> None:
    reads = iter([False, False, True, False, True])

    def look() -> None:
        if not next(reads):
            raise OSError("a disk that does not answer")

    put(store, "texts", TEXT)
    problem = f"{store.root}: the corpus store cannot be read; found OSError: a disk that does not answer"
    with opened(store) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server.watcher, "_look", look)
            for times, problems in ((2, [problem]), (1, []), (1, [problem]), (1, [])):
                watch(server.watcher, times)
                assert server.proposer.status()["problems"] == problems
        assert server.source(server.ask()) == "corpus"
    assert caplog.text.count("its previous state stays in use") == 2, "once for each time that it could not be read"


def test_the_watch_finds_what_another_process_adds(store: Store) -> None:
    with opened(store, poll_seconds=0.001) as server:
        found, look = threading.Event(), server.watcher._look

        def looked() -> None:
            look()
            if server.corpora():
                found.set()

        server.watcher._look = looked  # type: ignore[method-assign]
        put(store, "texts", TEXT)
        assert found.wait(60)
        assert server.source(server.ask()) == "corpus"


@pytest.mark.parametrize("folder_exists", [False, True])
def test_a_store_is_made_where_none_is(tmp_path: Path, caplog: Any, folder_exists: bool) -> None:
    """Another process may make it at the same time: then there is a folder, but not yet the files of a store."""
    path = tmp_path / "new" / "store"
    if folder_exists:
        path.mkdir(parents=True)
    empty = f"{path}: the corpus store has no corpora, so nothing is drafted from it"
    with Server(NEVER.model_copy(update={"store": str(path)}), tokenizer=Letters()) as server:
        assert f"retrieval: {empty}" in caplog.text
        assert server.proposer.status()["problems"] == [empty]
        server.add("texts", TEXT)
        assert server.corpora() == {"texts": len(TEXT)}
        assert server.proposer.status()["problems"] == []
    assert [corpus.name for corpus in Store(path, fingerprint(Letters())).list()] == ["texts"]


# -- tenants, names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [Letters(), None])
def test_a_store_that_the_server_cannot_make_is_used_once_it_is_there(tmp_path: Path, monkeypatch, caplog, tokenizer):
    """As where each server has the volume read-only; tests/engines/suites/deployed.py mounts one so."""
    root = tmp_path / "volume" / "store"
    root.parent.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or root.parent not in (path, *path.parents))
    context = PluginContext(EngineCaps(4), vocab_size=96, max_slots=1, max_length=64, target_tokenizer=tokenizer)
    there = NEVER.model_copy(update={"store": str(root)})
    made = Retrieval(replace(context, sections={"corpora": there}))
    made.warmup()
    try:
        assert made.status()["problems"] == [f"{root}: no corpus store yet, or none of this tokenizer"]
        assert not root.exists()
        assert "this process cannot write there" in caplog.text
        put(Store.create(root, fingerprint(Letters())), "late", TEXT)
        made.watcher._look()
        assert made.status()["tenants"] == {"": {"late": len(TEXT)}}
        assert made.status()["problems"] == []
        assert made.watcher.changed(made._loaded) is not None
    finally:
        made.close()


def test_a_late_store_of_another_tokenizer_is_reported_once(tmp_path: Path, caplog) -> None:
    there = NEVER.model_copy(update={"store": str(tmp_path / "store")})
    context = PluginContext(EngineCaps(4), vocab_size=96, target_tokenizer=Letters(), sections={"corpora": there})
    watcher = proposer.StoreWatcher(context, lambda tenants: tenants)
    Store.create(tmp_path / "store", Fingerprint("other", "0" * 64, 96))
    watch(watcher, 3)
    assert caplog.text.count("the corpus store is of another tokenizer") == caplog.text.count("CorpusError: ") == 1
    assert watcher.status()["problems"]


def test_tenants_do_not_see_each_others_corpora(store: Store) -> None:
    put(store, "texts", [*BEGIN, 1], tenant="a")
    put(store, "texts", [*BEGIN, 2], tenant="b")
    with opened(store) as server:
        assert [server.ask(tenant=tenant).token_ids for tenant in ("a", "b", "c", None)] == [(1,), (2,), (), ()]
        assert server.corpora() == {}
        server.add("shared", [*BEGIN, 3])
        assert [server.ask(tenant=tenant).token_ids for tenant in ("a", "b", "c", None)] == [(1,), (2,), (), (3,)]


def test_named_corpora_come_first(store: Store) -> None:
    for corpus, token in (("one", 1), ("two", 2), ("three", 3)):
        put(store, corpus, [*BEGIN, token, token])
    with opened(store) as server:
        for corpus, token in (("one", 1), ("two", 2), ("three", 3)):
            assert server.ask(corpora=[corpus]).token_ids[:1] == (token,)
            assert server.ask(corpora=["nothing", corpus]).token_ids[:1] == (token,)


def test_named_documents_become_references(store: Store) -> None:
    put(store, "one", [*BEGIN, 1], [*BEGIN, 2], tenant="a")
    put(store, "two", [*BEGIN, 3], tenant="a")
    with opened(store) as server:

        def of(*documents: StoredDocument, tenant: str = "a") -> tuple[int, ...]:
            return server.ask(tenant=tenant, documents=documents).token_ids

        unnamed = of()
        assert of(StoredDocument("d1")) == (2,)
        assert of(StoredDocument("d0")) == (3,), "the newest of that name"
        assert of(StoredDocument("d0", "one")) == (1,)
        assert server.watcher.unknown_documents == 0
        assert of(StoredDocument("d0"), tenant="b") == ()
        assert of(StoredDocument("d9")) == of(StoredDocument("d1", "two")) == unnamed
        assert server.watcher.unknown_documents == 3
        store.remove("one", documents=["d1"], tenant="a")
        server.watcher._look()
        assert of(StoredDocument("d1")) == of()
        assert server.watcher.unknown_documents == 4


def test_a_status_says_what_is_drafted_from(store: Store) -> None:
    put(store, "texts", TEXT, tenant="a")
    with opened(store) as server:
        server.ask(documents=[StoredDocument("d9")])
        server.add("shared", BEGIN)
        assert server.proposer.status() == {
            "store": str(store.root),
            "tenants": {"a": {"texts": len(TEXT)}, "": {"shared": len(BEGIN)}},
            "segments": 2,
            "problems": [],
            "unknown_documents": 1,
            "unreadable_documents": 0,
        }


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_a_store_of_another_tokenizer_is_refused_at_the_start(tmp_path: Path) -> None:
    other = Fingerprint("words", "f" * 32, 100)
    there = NEVER.model_copy(update={"store": str(Store.create(tmp_path / "store", other).root)})
    with pytest.raises(CorpusError, match=r"of another tokenizer.*'words'.*'Letters'"):
        Server(there, tokenizer=Letters())


def test_a_torn_segment_is_logged_and_the_rest_serves(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put(store, "torn", [*BEGIN, 1])
    (path,) = store.root.rglob("*.safetensors")
    overwrite(path, path.read_bytes()[:-8])
    put(store, "whole", [7, 8, 9, 6])
    with caplog.at_level(logging.WARNING), opened(store) as server:
        assert server.ask().token_ids == ()
        assert server.ask([7, 8, 9]).token_ids == (6,)
        (problem,) = server.proposer.status()["problems"]
    assert path.name in problem
    assert path.name in caplog.text


def test_what_does_not_fit_on_a_gpu_is_named_and_the_rest_serves(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(store.root, segment_tokens=60)  # so that the large one stays apart
    put(store, "large", [*BEGIN, *range(40)])
    put(store, "small", [7, 8, 9, 6], tenant="b")
    with opened(store) as server, caplog.at_level(logging.WARNING):
        server.proposer._device = torch.device("meta")
        server.proposer._max_bytes = 4 * 30
        put(store, "more", [1, 2])
        server.watcher._look()
        found = server.watcher.changed(None)
        assert found is not None
        assert len(found.segments) == 2
        (problem,) = server.proposer.status()["problems"]
        assert "corpora large of tenant ''" in problem
        assert "corpora.device_gib" in problem
        put(store, "again", [3, 4])
        server.watcher._look()
    assert caplog.text.count("corpora large of tenant ''") == 1


# -- work that must not hold up steps ----------------------------------------------------------------------------------


def test_steps_see_each_change_whole_and_once(server: Server) -> None:
    """Whatever is changed while steps run: the thread of the steps takes what there is, and nothing gets lost."""
    assert server.watcher.changed(server.proposer._loaded) is not None
    server.proposer.update()
    assert server.watcher.changed(server.proposer._loaded) is None
    rounds = 30

    def change() -> None:
        for number in range(rounds):
            server.add(f"c{number}", [*BEGIN, number])

    thread = threading.Thread(target=change)
    thread.start()
    seen = []
    while thread.is_alive():
        seen.append(server.ask().token_ids[:1])
    thread.join()
    assert all(not ids or ids[0] in range(rounds) for ids in seen)
    assert nodes(server.ask()) <= {*range(rounds)}
    assert server.ask([*BEGIN, rounds - 1]).token_ids == ()
    assert len(server.corpora()) == rounds
