"""Whom the operator's routes answer on SGLang's own app, and SGLang's own that show or change what is an operator's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from specplug.operator.access import KEY_VARIABLE
from specplug_sglang import status
from specplug_sglang.frontend import guards
from tests.engines.engines import Engine

OURS = [("GET", "/specplug/status"), ("POST", "/specplug/mode"), ("GET", "/specplug/corpora")]
HERE, THERE = ("127.0.0.1", 50000), ("10.0.0.5", 50000)
SECRET = {"engine": 0, "scheduler": {"control": {"mode": "on"}}, "details": {"tenants": ["acme"]}}


class Manager:
    """Stands in for a `TokenizerManager`: its methods are hooked as SGLang's are."""

    def __init__(self, admin_api_key: str | None) -> None:
        self.server_args = SimpleNamespace(
            admin_api_key=admin_api_key, speculative_algorithm="SPECPLUG", speculative_num_draft_tokens=9
        )
        self.orders: list[dict[str, Any]] = []
        self.tokenizer = None
        self.startup_time = 0.0

    async def get_internal_state(self) -> Any:
        async def original(_: Any) -> Any:
            return [{status.KEY: SECRET, "load": 1}]

        return await guards.show_states(original, self)

    async def set_internal_state(self, obj: Any) -> Any:
        async def original(_: Any, obj: Any) -> Any:
            self.orders.append(obj.server_args)
            return [True]

        return await guards.order_state(original, self, obj)


@contextmanager
def attached(admin_api_key: str | None) -> Iterator[tuple[Manager, Callable[..., Any]]]:
    """Attach specplug to SGLang's app, in a process that serves no HTTP; the app is as it was afterwards."""
    import sglang.srt.entrypoints.http_server as module
    from fastapi.testclient import TestClient

    from specplug_sglang.frontend.http import attach

    app, routes, manager = module.app, list(module.app.router.routes), Manager(admin_api_key)
    apps = [(route, route.app) for route in routes if hasattr(route, "app")]
    state, build = module._global_state, module.build_server_info
    module._global_state = SimpleNamespace(tokenizer_manager=manager, scheduler_info={})
    module.build_server_info = lambda *_: {}
    try:
        attach(app, manager)
        yield manager, lambda peer=HERE, **headers: TestClient(app, "http://localhost", client=peer, headers=headers)
    finally:
        module._global_state, module.build_server_info = state, build
        app.router.routes[:] = routes
        for route, original in apps:
            route.app = original
        del app.state.specplug, app.state.specplug_access


def codes(http: Any, routes: list[tuple[str, str]]) -> list[int]:
    bodies = [{"mode": "on"} if path == "/specplug/mode" else None for _, path in routes]
    return [http.request(*route, json=body).status_code for route, body in zip(routes, bodies, strict=True)]


def order(http: Any, **numbers: int) -> int:
    return http.post("/set_internal_state", json={"server_args": numbers}).status_code


def shown(http: Any) -> dict[str, Any]:
    answer = http.get("/server_info")
    assert answer.status_code == 200, answer.text
    (state,) = answer.json()["internal_states"]
    return dict(state)


def without_a_key(engine: Any) -> None:
    os.environ.pop(KEY_VARIABLE, None)
    with attached(None) as (manager, client):
        for http in (client(THERE), client(**{"X-Forwarded-For": "127.0.0.1"})):
            assert codes(http, OURS) == [403] * 3
            assert shown(http) == {"load": 1}
            assert order(http, specplug_mode=0) == order(http, specplug_num_speculative_tokens=0) == 403
            assert manager.orders == []
            assert order(http, pp_max_micro_batch_size=4) == 200, "SGLang's own routes keep their own access rules"
            assert manager.orders.pop() == {"pp_max_micro_batch_size": 4}
        http = client()
        assert http.get("/specplug/status").json()["engines"] == [SECRET]
        assert shown(http) == {"load": 1, status.KEY: SECRET}
        assert order(http, specplug_mode=0) == 200
        assert http.post("/specplug/mode", json={"mode": "off"}).status_code == 200
        assert manager.orders == [{"specplug_mode": 0}] * 2


def with_a_key(engine: Any, variable: bool) -> None:
    os.environ.pop(KEY_VARIABLE, None)
    if variable:
        os.environ[KEY_VARIABLE] = "open sesame"
    with attached(None if variable else "open sesame") as (manager, client):
        for peer in (HERE, THERE):
            for http in (client(peer), client(peer, Authorization="Bearer sesame")):
                assert codes(http, OURS) == [401] * 3
                assert shown(http) == {"load": 1}
                assert order(http, specplug_mode=0) == 401
                assert manager.orders == []
            http = client(peer, Authorization="Bearer open sesame")
            assert codes(http, OURS) == [200, 200, 400]  # it has no store
            assert status.KEY in shown(http)
            assert order(http, specplug_mode=0) == 200
            manager.orders.clear()
    os.environ.pop(KEY_VARIABLE, None)


@pytest.fixture
def offline(engine: Callable[..., Engine]) -> Engine:
    """An engine whose process has SGLang imported."""
    return engine("SPECPLUG", name="specplug")


def test_without_an_operators_key_this_machine_is_answered_and_nobody_else(offline: Engine) -> None:
    offline.call(without_a_key)


@pytest.mark.parametrize("variable", [False, True])
def test_with_an_operators_key_it_alone_opens(offline: Engine, variable: bool) -> None:
    offline.call(with_a_key, variable=variable)
