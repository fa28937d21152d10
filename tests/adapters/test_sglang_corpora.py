"""Corpora between SGLang and the proposers that hold them, without either."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import EngineError, PluginError, RequestError
from specplug.interfaces import HoldsCorpora
from specplug.operator.corpora import ServedCorpora
from specplug.operator.status import reported_details
from specplug.settings.model import CorporaSettings, Settings
from specplug_ngram.reference import NgramReference
from specplug_sglang.corpus_handover import SEPARATOR, documents_of, handed_over, read_documents, taken
from specplug_sglang.scheduler import corpora as adapter

TEXT = np.arange(10, dtype=np.int32)


class Holder:
    """Holds corpora; raises the exception that it was given."""

    def __init__(self, **errors: BaseException) -> None:
        self.held: dict[str, list[Any]] = {}
        self.errors = errors

    def add_corpus(self, name: str, documents: Sequence[Any]) -> int:
        self._raise("add")
        self.held[name] = list(documents)
        return sum(map(len, documents))

    def remove_corpus(self, name: str) -> None:
        self._raise("remove")
        del self.held[name]

    def list_corpora(self) -> dict[str, int]:
        self._raise("list")
        return {name: sum(map(len, documents)) for name, documents in self.held.items()}

    def _raise(self, call: str) -> None:
        if call in self.errors:
            raise self.errors[call]


def corpora(*holders: Any, most: int = 100) -> ServedCorpora:
    return ServedCorpora({f"holder-{number}": holder for number, holder in enumerate(holders)}, most, "Set the limit")


def test_holding_corpora_is_an_ability():
    assert isinstance(Holder(), HoldsCorpora)
    assert not issubclass(NgramReference, HoldsCorpora)


def test_every_proposer_that_can_holds_a_corpus():
    able, other = Holder(), Holder()
    both = corpora(object(), able, other)
    assert both.add("texts", [TEXT, TEXT[:5]]) == 15
    assert able.held == other.held
    assert both.sizes() == {"texts": 15}
    both.remove("texts")
    assert able.held == other.held == {}


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), BaseException("a panic"), RequestError("no")])
def test_what_one_refuses_nobody_holds(error):
    able, other = Holder(), Holder(add=error)
    with pytest.raises(PluginError, match=f"proposer 'holder-1': add_corpus failed; found {type(error).__name__}"):
        corpora(able, other).add("texts", [TEXT])
    assert able.held == {}


def test_the_first_error_is_reported(caplog):
    able, other = Holder(remove=ValueError("stays")), Holder(add=ValueError("no"))
    with pytest.raises(PluginError, match="add_corpus failed"):
        corpora(able, other).add("texts", [TEXT])
    assert "remove_corpus failed" in caplog.text


def test_a_size_that_is_no_number_is_taken_back():
    holder = Holder()
    holder.add_corpus = lambda name, documents: holder.held.update({name: documents})  # type: ignore[method-assign]
    with pytest.raises(PluginError, match="TypeError"):
        corpora(holder).add("texts", [TEXT])
    assert holder.held == {}


def test_all_corpora_together_are_bounded():
    holder = Holder()
    bounded = corpora(holder, most=25)
    bounded.add("one", [TEXT])
    bounded.add("two", [TEXT])
    with pytest.raises(RequestError, match="found 10 tokens in addition to 20 held; expected 25 at most"):
        bounded.add("three", [TEXT])
    bounded.remove("one")
    bounded.add("three", [TEXT, TEXT[:5]])
    assert bounded.sizes() == {"two": 10, "three": 15}


@pytest.mark.parametrize("call", ["sizes", "add", "remove"])
def test_where_nobody_can(call):
    arguments = {"sizes": (), "add": ("texts", [TEXT]), "remove": ("texts",)}[call]
    with pytest.raises(EngineError, match="no proposer of this server holds corpora; found holder-0; expected"):
        getattr(corpora(object()), call)(*arguments)


def test_a_proposer_that_cannot_list(caplog):
    with pytest.raises(PluginError, match="list_corpora failed; found ValueError: no"):
        corpora(Holder(list=ValueError("no"))).sizes()


def test_nothing_waits_for_a_corpus_that_is_being_added():
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Holder):
        def add_corpus(self, name: str, documents: Sequence[Any]) -> int:
            begun.set()
            may_end.wait()
            return super().add_corpus(name, documents)

    slow = corpora(Slow())
    thread = threading.Thread(target=slow.add, args=("texts", [TEXT]))
    thread.start()
    begun.wait()
    try:
        assert slow.sizes() == {}
        for call in (lambda: slow.remove("texts"), lambda: slow.add("more", [TEXT])):
            with pytest.raises(RequestError, match=r"a corpus is being added\. Try again"):
                call()
    finally:
        may_end.set()
        thread.join()
    slow.remove("texts")


class Sharing(Holder):
    """Holds what lies where others look, too."""

    shares_corpora = True

    def __init__(self, corpus_index: dict[str, list[Any]]) -> None:
        super().__init__()
        self.held = corpus_index

    def add_corpus(self, name: str, documents: Sequence[Any]) -> int:
        assert name not in self.held, "a store refuses names that it has"
        return super().add_corpus(name, documents)


def engines(corpus_index: dict[str, list[Any]], *own: Holder) -> list[ServedCorpora]:
    """Return the corpora of two engines of one server, each with two proposers that share, and one of its own."""
    return [
        ServedCorpora(
            {"a": Sharing(corpus_index), "own": holder, "b": Sharing(corpus_index)},
            100,
            "Set the limit",
            leads=not rank,
        )
        for rank, holder in enumerate(own)
    ]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_engines_share_is_changed_by_one_of_them(order):
    """SGLang sends an order to all engines, in any sequence; each answers as if it had executed it."""
    corpus_index: dict[str, list[Any]] = {}
    own = Holder(), Holder()
    both = engines(corpus_index, *own)
    assert [both[rank].add("texts", [TEXT, TEXT[:5]]) for rank in order] == [15, 15]
    assert [*own[0].held] == [*own[1].held] == [*corpus_index] == ["texts"]
    assert [corpora.sizes() for corpora in both] == [{"texts": 15}] * 2
    for rank in order:
        both[rank].remove("texts")
    assert own[0].held == own[1].held == corpus_index == {}
    with pytest.raises(RequestError, match="no corpus of this name"):
        both[0].remove("texts")


def test_an_engine_that_follows_changes_nothing():
    corpus_index: dict[str, list[Any]] = {"theirs": [TEXT]}
    follower = ServedCorpora({"a": Sharing(corpus_index)}, 15, "Set the limit", leads=False)
    assert follower.follows
    assert follower.add("texts", [TEXT]) == 10
    follower.remove("theirs")
    assert [*corpus_index] == ["theirs"]
    assert follower.sizes() == {"theirs": 10}


def test_a_failed_addition_leaves_nothing_where_others_look():
    corpus_index: dict[str, list[Any]] = {}
    (leader,) = engines(corpus_index, Holder(add=ValueError("no")))
    with pytest.raises(PluginError, match="add_corpus failed"):
        leader.add("texts", [TEXT])
    assert corpus_index == {}


def test_specplugs_limit_counts_unless_sglangs_is_set(monkeypatch):
    monkeypatch.setattr(adapter, "_flag_default", lambda: 1000)
    settings = Settings(corpora=CorporaSettings(max_tokens=5000))
    for stated, expected in ((1000, (5000, "corpora.max_tokens")), (10, (10, "--speculative-ngram"))):
        most, remedy = adapter.limit(SimpleNamespace(speculative_ngram_external_corpus_max_tokens=stated), settings)
        assert (most, expected[1] in remedy) == (expected[0], True)


class Reporting:
    """Reports the status that it was given."""

    def __init__(self, stated: Any) -> None:
        self.stated = stated

    def status(self) -> Any:
        if isinstance(self.stated, BaseException):
            raise self.stated
        return self.stated


def test_what_proposers_tell(caplog):
    proposers = {
        "b": Reporting(ValueError("no")),
        "c": Reporting(SystemExit(1)),
        "silent": object(),
        "a": Reporting({"x": 1}),
    }
    assert reported_details(proposers) == {
        "b": {"error": "ValueError: no"}, "c": {"error": "SystemExit: 1"}, "a": {"x": 1}
    }  # fmt: skip
    assert "'b': status failed" in caplog.text


some_texts = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), max_size=5)


@given(some_texts, st.integers(1, 4))
def test_documents_come_whole(texts, size):
    """SGLang cuts a file's documents to chunks, and puts a separator before all but the first."""
    chunks = []
    for number, text in enumerate(texts):
        whole = [SEPARATOR, *text] if number else text
        chunks += [whole[place : place + size] for place in range(0, len(whole), size)]
    documents = documents_of(taken(chunks))
    assert [document.tolist() for document in documents] == texts
    for document in documents:
        assert document.dtype == np.int32
        assert not document.flags.writeable


def letters(text: str) -> Any:
    return np.array([ord(letter) for letter in text], np.int32)


@pytest.mark.parametrize("one_host", [True, False])
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=6), most=st.integers(0, 60))
def test_texts_pass_from_process_to_process(one_host, texts, most):
    reading = read_documents(texts, letters, most)
    kept, size = [], 0
    for text in filter(None, texts):
        size += len(text) + bool(kept)
        if size > most:
            break
        kept.append([ord(letter) for letter in text])
    with handed_over(reading.ids, one_host=one_host) as chunks:
        found = [document.tolist() for document in documents_of(taken(json.loads(json.dumps(chunks))))]
    assert found == kept
    assert reading.truncated == (len(kept) < len([*filter(None, texts)]))


def test_a_long_text_passes_in_a_file_that_is_gone_then(tmp_path, monkeypatch):
    """Between two steps only a file's name is unpacked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ids = np.arange(100_000, dtype=np.int32)
    with handed_over(ids, one_host=True) as chunks:
        assert sum(map(len, chunks)) < 500
        assert len([*tmp_path.iterdir()]) == 1
        assert np.array_equal(taken(chunks), ids)
    assert [*tmp_path.iterdir()] == []
    with handed_over(ids, one_host=False) as chunks:
        assert max(map(len, chunks)) <= 4096
        assert np.array_equal(taken(chunks), ids)
    assert np.array_equal(taken([ids.tolist()]), ids)
