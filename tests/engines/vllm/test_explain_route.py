"""`GET /specplug/explain`: operators see all requests, a tenant by its API key its own, and nobody else any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specplug.operator import routes
from specplug.operator.access import KEY_VARIABLE, Operators
from specplug.operator.explainer import Explainer
from specplug.settings import load_settings
from specplug.trace import TraceWriter
from tests.explain.test_explanation import ROW, following

TENANTS = ("acme", "other", "")
AWAY = ("10.0.0.5", 50000)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    writer = TraceWriter(tmp_path / "trace.jsonl")
    writer.write(*(replace(ROW, request=f"chatcmpl-{tenant or 'none'}", tenant=tenant) for tenant in TENANTS))
    writer.close()
    return tmp_path / "trace.jsonl"


@pytest.fixture
def serve(trace: Path, tmp_path: Path) -> Callable[..., TestClient]:
    """Return a client of a server with these settings of tenants, an operator's key and API keys."""
    (tmp_path / "keys.json").write_text(json.dumps({digest("own"): "acme", digest("theirs"): "other"}))

    def served(
        tenants: dict[str, str] | None = None, *, operator: str = "", keys: tuple[str, ...] = (), peer: Any = AWAY
    ) -> TestClient:
        app = FastAPI()
        routes.attach(app)
        settings = load_settings({"trace": {"path": str(trace)}, "tenants": tenants or {}}, env={}).settings
        app.state.specplug = SimpleNamespace(explainer=Explainer(settings, None))
        app.state.specplug_access = Operators(environment={KEY_VARIABLE: operator}, api_keys=keys)
        return TestClient(app, "http://localhost", client=peer)

    return served


def shown(client: TestClient, request: str = "chatcmpl-", tenant: str | None = None, **headers: str) -> Any:
    """Return the tenants whose requests a client is told of, or the status of the refusal."""
    query = {"request": request} | ({} if tenant is None else {"tenant": tenant})
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = client.get("/specplug/explain", params=query, headers=sent)
    if answer.status_code == 200:
        return {answer.json()["tenant"]}
    listed = answer.text.partition("the newest ")[2]
    return {name for name in TENANTS if f"chatcmpl-{name or 'none'}" in listed} or answer.status_code


@pytest.fixture
def by_key(tmp_path: Path) -> dict[str, str]:
    return {"keys": str(tmp_path / "keys.json")}


def test_an_operator_is_told_of_all_or_of_one_tenant(serve):
    for client, headers in (
        (serve(peer=("127.0.0.1", 1)), {}),
        (serve(operator="sesame"), {"Authorization": "Bearer sesame"}),
    ):
        assert shown(client, **headers) == set(TENANTS)
        assert [shown(client, tenant=tenant, **headers) for tenant in TENANTS] == [{name} for name in TENANTS]
        assert shown(client, "chatcmpl-acme", "other", **headers) == 400


@pytest.mark.parametrize("tenants", [None, {"header": "X-Tenant"}])
def test_nobody_else_is_told_anything(serve, tenants):
    """A header proves nothing to those who reach the server past the proxy."""
    for client in (serve(tenants), serve(tenants, operator="sesame")):
        for headers in (
            {},
            {"X_Tenant": "acme"},
            {"Authorization": "Bearer own"},
            {"X_Tenant": "acme", "X_Api_Key": "own"},
        ):
            assert shown(client, **headers) in (401, 403)


def test_a_tenant_is_told_of_its_own_requests(serve, by_key):
    for client in (serve(by_key), serve(by_key, operator="sesame"), serve(by_key, peer=("127.0.0.1", 1))):
        assert shown(client, Authorization="Bearer own") == {"acme"}
        assert shown(client, Authorization="Bearer theirs") == {"other"}
        assert shown(client, X_Api_Key="own") == {"acme"}


def test_no_trick_tells_a_tenant_of_anothers(serve, by_key):
    for client in (serve(by_key), serve(by_key, operator="sesame"), serve(by_key, peer=("127.0.0.1", 1))):
        for request in ("chatcmpl-other", "chatcmpl-o", "chatcmpl-none"):
            for tenant in (None, "other", "acme", ""):
                assert shown(client, request, tenant, Authorization="Bearer own") == 400
        two = {"Authorization": "Bearer own", "X-Api-Key": "theirs"}
        answer = client.get("/specplug/explain?request=chatcmpl-&tenant=acme&tenant=other", headers=two)
        assert (answer.status_code, "several tenants" in answer.text) == (400, True)
    for headers in (
        {"Authorization": "Bearer guess"},
        {"Authorization": f"Bearer {digest('own')}"},
        {"X_Tenant": "acme"},
    ):
        assert shown(serve(by_key), **headers) == 403


def test_a_key_that_the_server_no_longer_takes_tells_nothing(serve, by_key):
    client = serve(by_key, keys=("theirs", "more"))
    assert shown(client, Authorization="Bearer own") == 401
    assert shown(client, X_Api_Key="own") == 401
    assert shown(client, Authorization="Bearer theirs") == {"other"}


def test_who_comes_by_a_proxy_with_an_operators_rights_is_told_of_its_tenant_alone(serve):
    """A proxy on the server's machine that adds no header of its own makes its clients local."""
    client = serve({"header": "X-Tenant"}, peer=("127.0.0.1", 1))
    assert shown(client, X_Tenant="acme") == {"acme"}
    assert shown(client, tenant="other", X_Tenant="acme") == {"acme"}
    assert shown(client, "chatcmpl-other", X_Tenant="acme") == 400


def test_a_list_of_answers_is_of_those_that_the_reader_may_see(trace, serve, by_key):
    writer = TraceWriter(trace)
    for tenant in TENANTS:
        rows = [ROW]
        for _ in range(8):
            rows.append(following(rows, [1]))
        writer.write(*(replace(row, request=f"long-{tenant}", tenant=tenant) for row in rows))
    writer.close()
    clients = {"": serve(peer=("127.0.0.1", 1)), "acme": serve(by_key)}
    for own, client in clients.items():
        for asked in (None, "other", "acme"):
            query = {"limit": "2"} | ({} if asked is None else {"tenant": asked})
            answer = client.get("/specplug/explain", params=query, headers={"Authorization": "Bearer own"})
            seen = {own or asked} if own or asked else set(TENANTS)
            listed = answer.json()
            assert listed["requests"] == len(seen)
            assert {each["tenant"] for part in ("slowest", "worst_drafted") for each in listed[part]} <= seen
            assert len(listed["slowest"]) == min(2, len(seen))
    assert serve(peer=("127.0.0.1", 1)).get("/specplug/explain?limit=many").status_code == 400


def test_what_is_missing_is_named(serve, trace):
    client = serve(peer=("127.0.0.1", 1))
    settings = load_settings({}, env={}).settings
    client.app.state.specplug = SimpleNamespace(explainer=Explainer(settings, None))
    answer = client.get("/specplug/explain?request=x")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(
        "trace.path: this server writes no trace; found null. Start the server with"
    )
