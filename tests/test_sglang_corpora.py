"""Corpora between SGLang and the proposers that hold them, without either."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specplug.errors import EngineError, PluginError, RequestError
from specplug.interfaces import HoldsCorpora
from specplug.serving.corpora import Corpora
from specplug_ngram.reference import NgramReference
from specplug_sglang.corpora import SEPARATOR, documents_of

TEXT = np.arange(10, dtype=np.int32)


class Holder:
    """Holds corpora; raises what it is told to."""

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


def corpora(*holders: Any, most: int = 100) -> Corpora:
    return Corpora({f"holder-{number}": holder for number, holder in enumerate(holders)}, most, "Set the limit")


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


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(2), RequestError("no")])
def test_what_one_refuses_nobody_holds(error):
    able, other = Holder(), Holder(add=error)
    with pytest.raises(PluginError, match=f"proposer 'holder-1': add_corpus failed; found {type(error).__name__}"):
        corpora(able, other).add("texts", [TEXT])
    assert able.held == {}


def test_the_first_error_is_told(caplog):
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
    with pytest.raises(RequestError, match="found 10 tokens beside 20 held; expected 25 at most"):
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


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), max_size=5), st.integers(1, 4))
def test_documents_come_whole(texts, size):
    """SGLang cuts a file's documents to chunks, and puts a separator before all but the first."""
    chunks = []
    for number, text in enumerate(texts):
        whole = [SEPARATOR, *text] if number else text
        chunks += [whole[place : place + size] for place in range(0, len(whole), size)]
    documents = documents_of(chunks)
    assert [document.tolist() for document in documents] == texts
    for document in documents:
        assert document.dtype == np.int32
        assert not document.flags.writeable
