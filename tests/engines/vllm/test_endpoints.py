"""The operator's routes on vLLM's own app: when they exist, and which clients they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specplug.operator.access import KEY_VARIABLE
from specplug_vllm.frontend import endpoints
from specplug_vllm.startup.advice import routes

ROUTES = [("GET", "/specplug/status"), ("POST", "/specplug/mode"), ("GET", "/specplug/corpora")]
ROUTES += [("POST", "/specplug/corpora"), ("DELETE", "/specplug/corpora/x"), ("GET", "/specplug/explain")]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FastAPI]:
    """Return an app as vLLM builds it, of a server with specplug, with `VLLM_PLUGINS` as given."""
    from vllm import plugins
    from vllm.plugins.endpoint_plugins.interface import attach_endpoint_plugins

    def loaded(named: str | None = None, tasks: tuple[str, ...] = ("generate",)) -> FastAPI:
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if named is not None:
            monkeypatch.setenv("VLLM_PLUGINS", named)
        monkeypatch.setattr(plugins, "load_endpoint_plugins", plugins.load_endpoint_plugins)
        endpoints.install()
        endpoints.install()  # once only
        app = FastAPI()
        attach_endpoint_plugins(app, tasks)
        return app

    return loaded


def paths(app: FastAPI) -> set[str]:
    return {path for path in app.openapi()["paths"] if path.startswith("/specplug")}


@pytest.mark.parametrize(
    ("named", "there"),
    [(None, True), ("specplug,specplug_http", True), ("specplug", False), ("", False)],
)
def test_the_routes_are_there_unless_the_list_of_plugins_leaves_them_out(
    load: Callable[..., FastAPI], named: str | None, there: bool
) -> None:
    app = load(named)
    assert bool(paths(app)) is routes().startswith("on") is there
    assert [plugin.name for plugin in app.state.endpoint_plugins] == ["specplug_http"] * there + ["specplug_clients"]


def test_a_server_that_generates_nothing_has_none(load: Callable[..., FastAPI]) -> None:
    assert not paths(load(tasks=("render",)))


def test_no_process_has_them_before_a_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import plugins

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert plugins.load_endpoint_plugins(("generate",)) == []


def served(app: FastAPI, peer: str = "127.0.0.1") -> TestClient:
    """Return a client at an address of a server that did not ask for specplug: it answers operators by a 404."""
    plugin, _ = app.state.endpoint_plugins
    asyncio.run(plugin.init_state(None, app.state, SimpleNamespace(api_key=None)))
    return TestClient(app, "http://localhost", client=(peer, 50000))


def codes(http: TestClient, **headers: str) -> list[int]:
    return [http.request(method, path, json={}, headers=headers).status_code for method, path in ROUTES]


def test_without_an_operators_key_this_machine_is_answered_and_nobody_else(
    load: Callable[..., FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    app = load()
    assert codes(served(app)) == [404] * len(ROUTES)
    assert codes(served(app, peer="10.0.0.5")) == [403] * len(ROUTES)
    assert codes(served(app), **{"X-Forwarded-For": "127.0.0.1"}) == [403] * len(ROUTES)
    assert "10.0.0.5" in served(app, peer="10.0.0.5").get("/specplug/status").json()["detail"]
