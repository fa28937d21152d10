"""Operators' orders over HTTP: their bodies, corpora in a running server's own process, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from specplug.corpus import files as corpus_files
from specplug.corpus.files import BusyError
from specplug.corpus.store import Store
from specplug.errors import SpecplugError
from specplug.operator import corpus_admin
from specplug.operator.corpus_admin import CorpusAdmin, http_status
from specplug.operator.orders import (
    EXAMPLES,
    AddOrder,
    BodyError,
    add_order_schema,
    parse_add_order,
    read_body,
    read_order,
)
from specplug.settings import CorporaSettings
from specplug.text.fingerprint import fingerprint
from tests.corpus.tools import OTHER


async def pieces(*sent: bytes) -> AsyncIterator[bytes]:
    for piece in sent:
        yield piece


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 1000


async def stuck() -> AsyncIterator[bytes]:
    yield b"x"
    await asyncio.Event().wait()


async def dripping() -> AsyncIterator[bytes]:
    while True:
        yield b""
        await asyncio.sleep(0)


async def steady() -> AsyncIterator[bytes]:
    """Take longer than a client may be silent."""
    begin = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begin + 0.05:
        yield b"x" * 65536
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("body", "limit", "status"),
    [(endless, 5000, 413), (stuck, 100, 408), (dripping, 100, 408), (steady, 1 << 40, None)],
)
def test_a_body_is_read_within_limits_on_size_and_time(body, limit, status):
    reading = read_body(body(), limit, WHO, patience=0.01)
    if status is None:
        assert len(asyncio.run(reading)) > 0
        return
    with pytest.raises(BodyError) as caught:
        asyncio.run(reading)
    assert http_status(caught.value) == status


@pytest.mark.parametrize(
    ("sent", "status"),
    [((b" " * 2**16, b"x"), 413), ((b"[" * 2**15,), 400), ((b"\xff",), 400), ((b"{}",), 400), ((b'{"mode": 1}',), 400)],
)
def test_an_order_is_joined_and_bounded_too(sent, status):
    with pytest.raises(SpecplugError) as caught:
        asyncio.run(read_order(pieces(*sent), "/specplug/mode"))
    assert http_status(caught.value) == status
    assert asyncio.run(read_order(pieces(b'{"mode": ', b"", b'"off"}'), "/specplug/mode")) == {"mode": "off"}


WHO = "/specplug/corpora"


class Letters:
    """A tokenizer: a byte is a token."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def __len__(self) -> int:
        return 256


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def admin(root: Path) -> CorpusAdmin:
    return CorpusAdmin(CorporaSettings(store=str(root), max_tokens=100), Letters())


def add(admin: CorpusAdmin, **stated: Any) -> dict[str, Any]:
    return asyncio.run(admin.add(json.dumps(stated).encode(), WHO))


def remove(admin: CorpusAdmin, corpus: str, *documents: str, tenant: str = "") -> dict[str, Any]:
    return asyncio.run(admin.remove(corpus, documents, tenant))


def listed(admin: CorpusAdmin, tenant: str | None = None) -> dict[str, dict[str, int]]:
    """Return the tokens of all corpora, by tenant."""
    tenants = asyncio.run(admin.list_corpora(tenant))["tenants"]
    return {name: {corpus: own["tokens"] for corpus, own in had["corpora"].items()} for name, had in tenants.items()}


def refusal(status: int, does: Any, *args: Any, **stated: Any) -> str:
    with pytest.raises(SpecplugError) as caught:
        does(*args, **stated)
    assert http_status(caught.value) == status, str(caught.value)
    return str(caught.value)


def test_texts_and_ids_are_added_listed_and_removed(admin, root):
    documents = ["abc", {"name": "d", "text": "de"}, {"token_ids": [7, 8, 9, 10]}, ""]
    reported = add(admin, name="one", documents=documents)
    known = {"present": 0, "same_name": 0}
    assert reported == {"name": "one", "tenant": "", "documents": 3, "tokens": 9, "empty": 1, **known}
    assert add(admin, name="one", tenant="acme", documents=["abc"])["tokens"] == 3
    store = Store(root, fingerprint(Letters()))
    assert store.document("one:1").tolist() == list(b"abc")
    assert store.document("d").tolist() == list(b"de")
    assert store.document("one:3").tolist() == [7, 8, 9, 10]
    assert listed(admin) == {"": {"one": 9}, "acme": {"one": 3}}
    assert listed(admin, "acme") == {"acme": {"one": 3}}
    about = asyncio.run(admin.list_corpora())
    assert about["store"] == str(root)
    assert about["tokenizer"]["digest"] == store.tokenizer.digest
    assert (about["tenants"][""]["documents"], about["tenants"][""]["tokens"]) == (3, 9)
    assert about["problems"] == []
    assert remove(admin, "one", "d")["tokens"] == 2
    assert remove(admin, "one") == {"name": "one", "tenant": "", "documents": 2, "tokens": 7}
    assert listed(admin) == {"acme": {"one": 3}}


def test_an_extension_tells_of_names_and_texts_that_are_there(admin):
    add(admin, name="one", documents=["abc"])
    assert add(admin, name="one", documents=["abc"], extend=True)["present"] == 1
    assert add(admin, name="one", documents=["de"], extend=True)["same_name"] == 1  # "one:1" as well


def test_a_list_keeps_no_segment_open(admin):
    add(admin, name="one", documents=["abc"])
    before = set(os.listdir("/proc/self/fd"))
    assert listed(admin) == {"": {"one": 3}}
    assert set(os.listdir("/proc/self/fd")) <= before


def test_nothing_is_made_by_looking(admin, root):
    assert listed(admin) == {}
    refusal(404, remove, admin, "one")
    assert not root.exists()


def test_a_name_is_taken_until_it_is_extended_or_removed(admin):
    add(admin, name="one", documents=["abc"])
    assert "extend" in refusal(409, add, admin, name="one", documents=["x"])
    assert add(admin, name="one", documents=["x"], extend=True)["tokens"] == 1
    assert listed(admin) == {"": {"one": 4}}
    assert "no such corpus" in refusal(404, remove, admin, "two")
    assert "no such corpus" in refusal(404, remove, admin, "one", tenant="acme")
    assert "no such document" in refusal(400, remove, admin, "one", "none")
    remove(admin, "one")
    assert add(admin, name="one", documents=["x"])["tokens"] == 1


NAMES = ["", "a/b", "..", ".", "a\0b", "a\nb", "n" * 257, "\ud800", 5, None, ["a"]]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_are_refused_and_nothing_is_written(admin, root, name):
    refusal(400, add, admin, name=name, documents=["abc"])
    if isinstance(name, str) and name not in ("", "a/b", ".", ".."):
        refusal(400, add, admin, name="one", tenant=name, documents=["abc"])
        refusal(400, remove, admin, name)
        refusal(400, remove, admin, "one", tenant=name)
        refusal(400, add, admin, name="one", documents=[{"name": name * 5, "text": "abc"}])
    assert not [*root.rglob("*.safetensors")]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b'{"name": "a", "name": "b", "documents": []}', "key 'name' twice"),
        (b"[]", "malformed order; found []; expected a JSON object"),
        (b'{"documents": ["x"]}', "key 'name' is missing"),
        (b'{"name": "a"}', "key 'documents' is missing"),
        (b'{"name": "a", "documents": "text"}', "expected a list of texts"),
        (b'{"name": "a", "documents": [5]}', "'documents.0'"),
        (b'{"name": "a", "documents": [{"text": "x", "token_ids": [1]}]}', "either 'text' or 'token_ids'"),
        (b'{"name": "a", "documents": [{"name": "x"}]}', "either 'text' or 'token_ids'"),
        (b'{"name": "a", "documents": ["\\udfff"]}', "lone surrogate"),
        (b'{"name": "a", "documents": [{"token_ids": [1.5]}]}', "integers only"),
        (
            b'{"name": "a", "documents": [{"token_ids": [256]}]}',
            "'documents.0.token_ids'; found 256 as entry 0; expected 0 to 255",
        ),
        (b'{"name": "a", "documents": [{"token_ids": [4294967297]}]}', "found 4294967297 as entry 0"),
        (b'{"name": "a", "documents": [{"token_ids": [-1]}]}', "found -1 as entry 0"),
        (b'{"name": "a", "documents": [], "tenat": "x"}', "Did you mean 'tenant'?"),
        (b'{"name": "a", "documents": ["x"], "extend": "yes"}', "'extend'"),
        (b'{"name": "a", "documents": []}', "nothing to add"),
        (b'{"name": "a", "documents": ["", ""]}', "2 documents, all of them empty"),
    ],
)
def test_a_bad_order_says_why_and_adds_nothing(admin, body, what):
    assert what in refusal(400, lambda: asyncio.run(admin.add(body, WHO)))
    assert listed(admin) == {}


def test_a_tenant_has_so_many_tokens_at_most(admin):
    add(admin, name="one", documents=["x" * 60])
    assert "corpora.max_tokens" in refusal(400, add, admin, name="two", documents=["x" * 41])
    assert "corpora.max_tokens" in refusal(400, add, admin, name="one", documents=["x" * 41], extend=True)
    add(admin, name="two", documents=["x" * 41], tenant="acme")
    add(admin, name="two", documents=["x" * 40])
    assert listed(admin) == {"": {"one": 60, "two": 40}, "acme": {"two": 41}}


@pytest.mark.parametrize(
    ("number", "status"), [(errno.ENOSPC, 507), (errno.EDQUOT, 507), (errno.EACCES, 500), (0, 503)]
)
def test_what_a_volume_or_another_process_prevents_is_reported_and_costs_nothing(admin, monkeypatch, number, status):
    add(admin, name="one", documents=["abc"])

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number)) if number else BusyError("another process changes it")

    with monkeypatch.context() as broken:
        broken.setattr(*((corpus_files.os, "fsync") if number else (Store, "add")), fails)
        stated = refusal(status, add, admin, name="two", documents=["abc"])
    assert (os.strerror(number) if number else "another process changes it") in stated
    assert listed(admin) == {"": {"one": 3}}
    add(admin, name="two", documents=["abc"])


def test_nothing_is_compiled_where_signals_are_handled(root, monkeypatch):
    """A compiler's callbacks swallow what a handler raises: a server that is starting would outlive its SIGTERM."""
    threads = []
    monkeypatch.setattr(corpus_admin, "load_sorting", lambda: threads.append(threading.current_thread()))
    CorpusAdmin(CorporaSettings(store=str(root)), None)
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


CALLS = {
    "list": listed,
    "add": lambda admin: add(admin, name="a", documents=["x"]),
    "remove": lambda admin: remove(admin, "a"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_server_without_a_store_or_with_one_of_another_tokenizer_says_so(admin, root, call):
    without = CorpusAdmin(CorporaSettings(), None)
    assert "corpora.store: this server has no corpus store" in refusal(400, CALLS[call], without)
    Store.create(root, OTHER)
    stated = refusal(400, CALLS[call], admin)
    assert OTHER.name in stated
    assert Letters.__name__ in stated


def test_a_server_without_a_tokenizer_takes_ids_only(root):
    Store.create(root, OTHER)
    admin = CorpusAdmin(CorporaSettings(store=str(root)), None)
    assert "a text needs a tokenizer" in refusal(400, add, admin, name="one", documents=["abc"])
    assert add(admin, name="one", documents=[{"token_ids": [99]}])["tokens"] == 1
    assert "found 100 as entry 0" in refusal(400, add, admin, name="two", documents=[{"token_ids": [100]}])


def test_several_servers_add_at_once(root):
    """Each thread uses its own service; in the end all corpora are there."""
    services = [CorpusAdmin(CorporaSettings(store=str(root)), Letters()) for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        jobs = [threads.submit(add, services[i % 3], name=f"c{i}", documents=["abc"] * (i + 1)) for i in range(12)]
        assert [job.result()["tokens"] for job in jobs] == [3 * (i + 1) for i in range(12)]
    assert listed(services[0]) == {"": {f"c{i}": 3 * (i + 1) for i in range(12)}}


def test_the_event_loop_serves_on_while_a_corpus_is_added(admin, monkeypatch):
    """Adding waits for a tokenizer that waits for the loop."""

    async def both() -> Iterator[Any]:
        loop = asyncio.get_running_loop()
        requested = asyncio.Event()

        def slow(texts: list[str]) -> list[list[int]]:
            loop.call_soon_threadsafe(requested.set)
            asyncio.run_coroutine_threadsafe(admin.list_corpora(), loop).result(60)
            return [list(text.encode()) for text in texts]

        monkeypatch.setattr(admin, "_tokenizer", dataclasses.replace(admin._tokenizer, encode_many=slow))
        adding = asyncio.create_task(admin.add(b'{"name": "one", "documents": ["abc"]}', WHO))
        await requested.wait()
        return await adding

    assert asyncio.run(both())["tokens"] == 3


def test_examples_are_orders_and_the_schema_is_whole():
    for example in EXAMPLES.values():
        assert parse_add_order(json.dumps(example["value"]).encode(), WHO).documents
    schema = add_order_schema()
    assert "$ref" not in json.dumps(schema)
    assert set(schema["properties"]) == set(AddOrder.model_fields)
