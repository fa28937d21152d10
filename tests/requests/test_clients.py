"""Clients: their digests, the tenants that a server assigns, what they may hold, and the isolation of state."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specplug.errors import RequestError, SettingsError, SpecplugError
from specplug.requests import clients, wire
from specplug.requests.clients import BusyError, Quota, RequestClient, Tenants, isolation_key
from specplug.requests.parsing import INLINE_CHARACTERS
from specplug.settings.model import Limits, TenantSettings
from specplug.settings.sources import load_settings
from tests.requests.parser import Bytes, parser_of


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clients.SECRET_VARIABLE, "a secret")


def headers(*lines: str) -> list[tuple[bytes, bytes]]:
    pairs = [line.split(": ", 1) for line in lines]
    return [(name.encode(), value.encode()) for name, value in pairs]


def shown(*lines: str) -> str | None:
    return clients.digest(headers(*lines))


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
            client = clients.current_client()
            seen.append(None if client is None else client.digest)

        await asyncio.gather(later(), asyncio.create_task(later()))

    def scope(key: str | None) -> dict[str, Any]:
        return {"type": "http", "headers": [] if key is None else [(b"authorization", key.encode())]}

    async def serve() -> None:
        served = clients.Clients(app)
        await asyncio.gather(*[served(scope(key), None, None) for key in ("one", "two", None)])
        await served(scope("one"), None, None)
        await served({"type": "lifespan"}, None, None)
        assert clients.current_client() is None

    contextvars.copy_context().run(asyncio.run, serve())
    one = shown("authorization: one")
    two = shown("authorization: two")
    assert sorted(map(str, seen)) == sorted(map(str, [one, one, two, two, None, None, one, one, None, None]))
    assert seen[-4:] == [one, one, None, None]


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def by_key(tmp_path: Path) -> Tenants:
    file = tmp_path / "tenants.json"
    file.write_text(json.dumps({sha("one"): "acme", sha("two"): "acme", sha("three"): "other"}))
    return Tenants(TenantSettings(keys=str(file)))


def test_without_either_requests_name_their_tenants() -> None:
    tenants = Tenants(TenantSettings())
    tenants.refuse("acme")
    assert tenants.of(headers("x-tenant: acme", "authorization: Bearer one")) is None


@pytest.mark.parametrize(
    ("lines", "tenant"),
    [
        (["authorization: Bearer one"], "acme"),
        (["Authorization: bearer two"], "acme"),
        (["x-api-key: three"], "other"),
        (["authorization: Bearer one", "api-key: two"], "acme"),
        (["authorization: Bearer four"], None),
        (["authorization: Basic one"], None),
        (["x-tenant: acme"], None),
        ([], None),
    ],
)
def test_a_key_gives_the_tenant(by_key: Tenants, lines: list[str], tenant: str | None) -> None:
    assert by_key.of(headers(*lines)) == tenant


def test_keys_of_several_tenants_are_refused(by_key: Tenants) -> None:
    with pytest.raises(RequestError, match="the client's API key names several tenants"):
        by_key.of(headers("authorization: Bearer one", "x-api-key: three"))


def test_a_header_gives_the_tenant() -> None:
    tenants = Tenants(TenantSettings(header="X-Tenant"))
    assert tenants.of(headers("x-tenant: acmé")) == "acmé"
    assert tenants.of(headers("authorization: Bearer one")) is None
    with pytest.raises(RequestError, match="the header 'X-Tenant' names several tenants; found 2"):
        tenants.of(headers("x-tenant: acme", "X-Tenant: other"))
    for wrong in ("", "a\x00b", "x" * 300):
        with pytest.raises(RequestError, match="tenant"):
            tenants.of([(b"x-tenant", wrong.encode())])


@pytest.mark.parametrize("given", [{"specplug_tenant": "acme"}, {"specplug": {"tenant": "acme"}}])
def test_the_parser_refuses_it_in_every_spelling(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="this server assigns tenants"):
        parser_of(tenants={"header": "X-Tenant"}).parse_fields(given)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[", "malformed tenants of keys"),
        ("[]", "malformed tenants of keys"),
        ('{"one": "acme"}', "64 hexadecimal digits"),
        (json.dumps({sha("one"): ""}), "tenant"),
        (json.dumps({sha("one"): 5}), "tenant"),
    ],
)
def test_a_malformed_file_of_keys_stops_the_start(tmp_path: Path, text: str, what: str) -> None:
    file = tmp_path / "tenants.json"
    file.write_text(text)
    with pytest.raises(SpecplugError, match=what):
        Tenants(TenantSettings(keys=str(file)))
    with pytest.raises(SettingsError, match="cannot read"):
        Tenants(TenantSettings(keys=str(tmp_path / "absent")))


def test_one_source_at_most() -> None:
    with pytest.raises(SettingsError, match="either 'header' or 'keys'"):
        load_settings({"tenants": {"header": "X-Tenant", "keys": "file"}}, env={})


LIMITS = {"max_reference_tokens": 100_000, "max_client_reference_tokens": 40_000, "max_server_reference_tokens": 60_000}


def client(key: str | None) -> RequestClient:
    made = RequestClient([] if key is None else [(b"authorization", key.encode())])
    made.digest = key
    return made


def test_what_is_held_is_counted_by_client_until_released() -> None:
    quota = Quota(Limits(max_client_reference_tokens=10, max_server_reference_tokens=25))
    first, *_ = [quota.reserve(name, 10) for name in ("a", "b")]
    with pytest.raises(BusyError, match=r"requests of this client .* found 11 .* at most 10, limits\.max_client"):
        quota.reserve("a", 1)
    with pytest.raises(BusyError, match=r"requests of all clients .* found 26 .* limits\.max_server_reference_tokens"):
        quota.reserve("c", 6)
    first()
    first()
    assert quota.reserved_tokens == 10
    quota.reserve("a", 10)()
    assert quota.reserved_tokens == 10


def test_a_request_that_goes_on_after_its_http_request_counts_until_it_is_gone() -> None:
    own = parser_of(Bytes(), limits=LIMITS)
    fields = {"specplug_references": [1] * 10_000}

    async def serve() -> None:
        queued = type("Queued", (), {})()
        first = client("a")
        await own.admit(fields, first, 4, queued)
        first.end()
        with pytest.raises(BusyError):
            await own.admit(fields, client("a"), 1)
        del queued
        await own.admit(fields, client("a"), 4)

    asyncio.run(serve())


def test_prompts_and_samples_count_and_end_with_the_http_request() -> None:
    """One request of a few megabytes could otherwise be copied into thousands of requests of the engine."""
    tokenizer = Bytes()
    own = parser_of(tokenizer, limits=LIMITS)
    fields = {"specplug_references": [1] * 10_000}

    async def serve() -> None:
        one = client("a")
        parsed = await own.admit(fields, one, 4)
        assert wire.reference_tokens(parsed) == 10_000
        with pytest.raises(BusyError):
            await own.admit(fields, one, 1)
        await own.admit(fields, client("b"), 2)
        with pytest.raises(BusyError, match="all clients"):
            await own.admit(fields, client(None), 1)
        one.end()
        with pytest.raises(BusyError, match="this client"):
            await own.admit(fields, client("a"), 5)
        await own.admit(fields, client("a"), 4)
        await own.admit(fields, None, 1000)  # a program's own

    asyncio.run(serve())


def test_text_that_waits_counts_and_mistakes_release_it() -> None:
    tokenizer = Bytes()
    own = parser_of(tokenizer, limits=LIMITS | {"max_client_reference_tokens": 30_000})

    async def serve() -> None:
        texts = ["x" * 50_000 for _ in range(3)]
        found = await asyncio.gather(
            *[own.parse_in_thread({"specplug_references": text}, "a") for text in texts], return_exceptions=True
        )
        assert [type(one) for one in found] == [dict, dict, BusyError]
        for _ in range(3):
            with pytest.raises(RequestError, match="unknown request field"):
                await own.parse_in_thread({"specplug_reference": "x" * 100_000}, "a")

    asyncio.run(serve())


def test_clients_take_turns_with_large_references() -> None:
    tokenizer = Bytes()
    own = parser_of(tokenizer, limits={"max_reference_tokens": 100_000})

    async def serve() -> None:
        many = [own.parse_in_thread({"specplug_references": f"a{n}" + "x" * INLINE_CHARACTERS}, "a") for n in range(6)]
        await asyncio.gather(*many, own.parse_in_thread({"specplug_references": "bb" + "x" * INLINE_CHARACTERS}, "b"))

    asyncio.run(serve())
    assert sorted(tokenizer.seen[:2]) == ["a0", "bb"], "the other client does not wait for all of the first one's"
    assert len(tokenizer.seen) == 7


TEXTS = st.text(alphabet="a1/:'\",()\\ \ud83d\ude00\U0001f600", max_size=6) | st.sampled_from(
    ["a/lora:1", "lora:1", "tenant", "engine", "None", "a', None)"]
)
ENGINES = st.tuples(st.none() | TEXTS) | st.tuples(st.none() | TEXTS, st.none() | TEXTS)
LORAS = st.none() | st.integers(1, 3) | TEXTS
CLIENTS = st.none() | TEXTS
REQUESTED = st.tuples(st.none() | TEXTS, ENGINES, LORAS, CLIENTS)


def meant(tenant, engine, lora_id, client=None):
    """Return everything that identifies a request's owner, including the LoRA adapter."""
    own = tuple(part or None for part in engine) if any(engine) else None
    brings = tenant is not None or lora_id is not None or client or own
    return (tenant, own, lora_id, client or None) if brings else ("nobody",)


@given(one=REQUESTED, other=REQUESTED)
@example(one=("a/lora:1", (None,), None), other=("a", (None,), 1))
@example(one=("x", (None,), None), other=(None, ("x",), None))
@example(one=("a", (None,), 1), other=("a", (None,), "1"))
@example(one=(None, ("a", "b"), None), other=(None, ("a/b", None), None))
@example(one=("\ud83d\ude00", (None,), None), other=("\U0001f600", (None,), None))
def test_keys_are_equal_where_requests_may_share_and_nowhere_else(one, other):
    assert (isolation_key(*one) == isolation_key(*other)) == (meant(*one) == meant(*other))
