"""A server assigns tenants by a proxy's header or by API keys; clients cannot choose another's."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from specplug.errors import RequestError, SettingsError, SpecplugError
from specplug.requests import wire
from specplug.requests.clients import Tenants
from specplug.requests.parser import FieldParser
from specplug.settings.model import TenantSettings
from specplug.settings.sources import load_settings
from specplug.text.request_tokenizer import RequestTokenizer


def sha(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def headers(*lines: str) -> list[tuple[bytes, bytes]]:
    pairs = [line.split(": ", 1) for line in lines]
    return [(name.encode(), value.encode()) for name, value in pairs]


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


def test_a_request_must_not_name_a_tenant_then(by_key: Tenants) -> None:
    with pytest.raises(RequestError) as refused:
        by_key.refuse("acme")
    assert str(refused.value) == (
        "request field 'tenant': this server assigns tenants; found 'acme'; expected none, as the client's API key "
        "gives the tenant. Omit the field"
    )
    by_key.refuse(None)


@pytest.mark.parametrize("given", [{"specplug_tenant": "acme"}, {"specplug": {"tenant": "acme"}}])
def test_the_parser_refuses_it_in_every_spelling(given: dict[str, Any]) -> None:
    found = load_settings({"tenants": {"header": "X-Tenant"}}, env={})
    with pytest.raises(RequestError, match="this server assigns tenants"):
        FieldParser(found, 256, RequestTokenizer(object)).parsed(given)


@pytest.mark.parametrize("packed", [False, True])
def test_an_assigned_tenant_travels_beside_the_fields(packed: bool) -> None:
    given = {"specplug": wire.encode(wire.DEFAULTS, (), "own")}
    given = wire.packed(given) if packed else given
    assert wire.decode(wire.with_client(given, None, "acme"))[2] == "acme"
    assert wire.decode(wire.with_client(given, "digest"))[2] == "own"
    assert wire.decode(wire.with_client(None, None, "acme"))[2] == "acme"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[", "cannot read the tenants of keys"),
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
