"""Clients are identified by digests of their API keys, which do not reveal the keys."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import numpy as np
import pytest

from specplug.requests import clients, wire
from specplug.types.request import Reference, RequestOptions


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clients.SECRET_VARIABLE, "a secret")


def shown(*headers: str) -> str | None:
    pairs = [header.split(": ", 1) for header in headers]
    return clients.digest([(name.encode(), value.encode()) for name, value in pairs])


def test_a_client_is_reported_by_its_key() -> None:
    one = shown("accept: text/html", "authorization: Bearer one")
    assert one == shown("authorization: Bearer one", "user-agent: curl")
    others = [shown(f"{name}: Bearer two") for name in ("authorization", "x-api-key", "api-key")]
    assert len({one, *others}) == 2, "the name of the header does not matter"
    assert one != shown("authorization: Bearer one", "x-api-key: more")
    assert shown("accept: text/html") is None


def test_a_digest_is_the_servers_and_does_not_hold_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shown("authorization: Bearer sesame")
    assert one is not None
    assert "sesame" not in one
    monkeypatch.setenv(clients.SECRET_VARIABLE, "another secret")
    assert shown("authorization: Bearer sesame") != one


def test_a_secret_is_drawn_once_for_all_processes_of_a_server() -> None:
    one: dict[str, str] = {}
    other: dict[str, str] = {}
    clients.prepare(one)
    clients.prepare(other)
    assert one != other
    inherited = dict(one)
    clients.prepare(inherited)
    assert inherited == one


def test_without_a_secret_nobody_is_reported_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(clients.SECRET_VARIABLE)
    assert shown("authorization: Bearer one") is None


def test_whatever_serves_a_request_knows_the_client_and_nobody_else_does() -> None:
    seen: list[str | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            client = clients.current()
            seen.append(None if client is None else client.digest)

        await asyncio.gather(later(), asyncio.create_task(later()))

    def scope(key: str | None) -> dict[str, Any]:
        return {"type": "http", "headers": [] if key is None else [(b"authorization", key.encode())]}

    async def serve() -> None:
        served = clients.Clients(app)
        await asyncio.gather(*[served(scope(key), None, None) for key in ("one", "two", None)])
        await served(scope("one"), None, None)
        await served({"type": "lifespan"}, None, None)
        assert clients.current() is None

    contextvars.copy_context().run(asyncio.run, serve())
    one, two = shown("authorization: one"), shown("authorization: two")
    assert sorted(map(str, seen)) == sorted(map(str, [one, one, two, two, None, None, one, one, None, None]))
    assert seen[-4:] == [one, one, None, None]


@pytest.mark.parametrize("packed", [False, True])
def test_a_client_travels_beside_the_fields(packed: bool) -> None:
    options, reference = RequestOptions(store=False), Reference(np.array([1, 2], np.int32))
    given = {"other": 1, wire.WIRE_KEY: wire.encode(options, (reference,), "acme")}
    given = wire.packed(given) if packed else given
    found = wire.with_client(given, "digest")
    assert wire.client_of(given) is None
    assert wire.client_of(found) == "digest"
    assert wire.decode(found) == (options, (reference,), "acme")
    assert wire.is_encoded(found)
    assert found["other"] == 1


@pytest.mark.parametrize("given", [None, {}, {"other": 1}])
def test_a_client_travels_without_fields(given: Any) -> None:
    found = wire.with_client(given, "digest")
    assert wire.client_of(found) == "digest"
    assert wire.decode(found) == wire.decode(None)
    assert wire.client_of(given) is None
    assert {key: found[key] for key in given or ()} == (given or {})
