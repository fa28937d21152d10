"""A request that a proposer fails to begin inherits nothing from the request that had its slot before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.corpus.segment import Segment
from specplug.corpus.store import Store
from specplug.lookup import steps
from specplug.lookup.corpora import Numbers
from specplug.lookup.corpora import Segment as Searched
from specplug.lookup.owners import Owners
from specplug.lookup.steps import LookupSteps
from specplug.text.fingerprint import fingerprint
from specplug.types.request import RequestOptions, StoredDocument
from specplug_retrieval.proposer import Retrieval, StoreWatcher
from tests.proposers.test_retrieval import BEGIN, Letters, Server, opened, put

SECRET = list(range(40, 56))
THEIRS = [*BEGIN, *SECRET]
VICTIM: dict[str, dict[str, Any]] = {
    "own text": {},
    "references": {"references": [THEIRS]},
    "documents": {"options": RequestOptions(documents=(StoredDocument("d0"),))},
    "corpora": {"options": RequestOptions(corpora=("texts",))},
    "response memory": {"isolation_key": "them"},
}


def fails(*_: Any, **__: Any) -> Any:
    raise OSError("a disk that does not answer")


FAILURES: dict[str, tuple[Any, str]] = {
    "begin": (Retrieval, "begin"),
    "references": (steps, "_before"),
    "tenant": (Numbers, "known_numbers"),
    "owner": (Owners, "number_of"),
    "store": (StoreWatcher, "changed"),
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with a secret of one tenant."""
    made = Store.create(tmp_path / "store", fingerprint(Letters()))
    put(made, "texts", THEIRS, tenant="them")
    return made


@pytest.fixture
def server(store: Store, request: pytest.FixtureRequest) -> Iterator[Server]:
    with opened(store) as made:
        yield made


def serve_victim(server: Server, what: str) -> None:
    """Serve a tenant's request, from which something is left in the slot that it leaves."""
    driver = server.driver
    for number in range(3):
        name = f"victim {number}"
        driver.start(name, BEGIN, tenant="them", **VICTIM[what])
        driver.step(6, order=[name])
        if what in ("own text", "response memory"):
            driver.extend(name, SECRET)
        if what == "own text":
            driver.extend(name, BEGIN)
        assert driver.step(6, order=[name]).by_request()[name].token_ids or what == "response memory"
        driver.leave(name)


@pytest.mark.parametrize("what", VICTIM)
@pytest.mark.parametrize("where", FAILURES)
def test_nothing_of_the_slots_last_request_is_drafted(
    server: Server, monkeypatch: pytest.MonkeyPatch, what: str, where: str
) -> None:
    serve_victim(server, what)
    with monkeypatch.context() as patch:
        patch.setattr(*FAILURES[where], fails)
        with pytest.raises(OSError, match="does not answer"):
            server.driver.start("requested", BEGIN, tenant="us", isolation_key="us")
    for token in BEGIN:
        drafted = server.driver.step(6, order=["requested"]).by_request()["requested"].token_ids
        assert not {*drafted} & {*SECRET}
        server.driver.extend("requested", [token])
    server.driver.leave("requested")


def test_it_is_neither_drafted_for_nor_remembered(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_victim(server, "response memory")
    with monkeypatch.context() as patch:
        patch.setattr(Retrieval, "begin", fails)
        with pytest.raises(OSError, match="does not answer"):
            server.driver.start("requested", [*BEGIN, 5, *BEGIN], isolation_key="us")
    assert server.driver.step(6, order=["requested"]).by_request()["requested"].token_ids == ()
    server.driver.extend("requested", [5, 6, 7, 8])
    server.driver.step(0, order=["requested"])
    server.driver.leave("requested")
    assert server.ask([*BEGIN, 5]).token_ids == (), "it belongs to nobody"


# -- a store that is damaged where it was not looked at ----------------------------------------------------------------

DAMAGES: dict[str, Callable[[Segment], None]] = {
    "order": lambda it: setattr(it, "name_order", np.array([2**31 - 1], np.int64)),
    "names": lambda it: setattr(it, "name_ends", np.array([], np.int64)),
    "corpus": lambda it: setattr(it, "corpus_of", np.array([99], np.int32)),
    "starts": lambda it: setattr(it, "starts", np.array([], np.int64)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_document_that_cannot_be_read_costs_itself(
    store: Store, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is served with its references, and with the other document of that name."""
    put(store, "whole", [7, 8, 9, 6], tenant="us")
    put(Store(store.root, segment_tokens=30), "torn", THEIRS, tenant="us")  # so that it stays apart
    with opened(store) as server, caplog.at_level(logging.ERROR):
        assert server.watcher._seen is not None
        _, torn = server.watcher._seen.tenants["us"]
        DAMAGES[damage](torn)
        named = tuple(StoredDocument("d0", corpus) for corpus in ("torn", "whole", "torn"))
        for number in range(2):
            server.driver.start(
                f"{number}", [1, 2], tenant="us", references=[[1, 2, 3]], options=RequestOptions(documents=named)
            )
            draft = server.driver.step(6, order=[f"{number}"]).by_request()[f"{number}"]
            assert draft.token_ids[:1] == (3,)
            server.driver.leave(f"{number}")
        assert server.watcher.unknown_documents == 0
        assert server.proposer.status()["unreadable_documents"] == 4
    assert caplog.text.count("cannot be read") == 1
    assert "'d0'" in caplog.text


def test_a_segment_that_cannot_be_searched_costs_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments searched together with it still give drafts; its own earlier contents no longer do."""

    def refuse(text: Any, *rest: Any) -> Searched:
        if text[1] == BEGIN[0]:
            raise ValueError("malformed, as a test wants it")
        return Searched(text, *rest)

    put(store, "old", [7, 8, 9, 6], tenant="us")
    with opened(store) as server:
        assert server.ask([7, 8, 9], tenant="us").token_ids == (6,)
        store.remove("old", tenant="us")
        put(store, "torn", THEIRS, tenant="us")
        put(store, "whole", [7, 8, 9, 5], tenant="you")
        monkeypatch.setattr("specplug_retrieval.proposer.Segment", refuse)
        server.watcher._look()
        assert server.ask([7, 8, 9], tenant="us").token_ids == ()
        assert server.ask([7, 8, 9], tenant="you").token_ids == (5,)
        assert any("as a test wants it" in problem for problem in server.proposer.status()["problems"])


def test_a_change_that_cannot_be_taken_in_is_looked_at_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(store) as server:
        put(store, "new", [7, 8, 9, 6], tenant="us")
        for owner, part in ((Store, "list"), (server.watcher, "_corpora_of")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, part, fails)
                with pytest.raises(OSError, match="does not answer"):
                    server.watcher._look()
            assert server.ask([7, 8, 9], tenant="us").token_ids == ()
        server.watcher._look()
        assert server.ask([7, 8, 9], tenant="us").token_ids == (6,)


def test_corpora_that_could_not_be_taken_are_taken_at_the_next_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store) as server:
        put(store, "new", [7, 8, 9, 6], tenant="us")
        server.watcher._look()
        before = server.proposer.steps.state
        with monkeypatch.context() as patch:
            patch.setattr(LookupSteps, "load", fails)
            with pytest.raises(OSError, match="does not answer"):
                server.ask([7, 8, 9], tenant="us")
            assert server.proposer.steps.state is before
        server.driver.leave("requested", None)
        assert server.ask([7, 8, 9], tenant="us").token_ids == (6,)
