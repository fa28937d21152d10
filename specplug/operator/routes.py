"""The operator's HTTP routes, the same on every server: `/specplug/status`, `/specplug/mode` and `/specplug/corpora`.

Adapters attach them to their engine's FastAPI app and put an `OperatedServer` into the app's state.  The routes serve
operators only, see `specplug.operator.access`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastapi import Depends, FastAPI, HTTPException, Request

from specplug.errors import EngineError
from specplug.operator import corpora_routes
from specplug.operator.access import Operators
from specplug.operator.bodies import BodyError, read_order
from specplug.operator.control import Order

_EXAMPLES = {
    "off": {"value": {"mode": "off"}},
    "on, at most 4 draft tokens": {"value": {"mode": "on", "num_speculative_tokens": 4}},
}

Engines = list[Any]
"""What each engine of a server answers, by data-parallel rank."""


@dataclass(frozen=True, eq=False)
class OperatedServer:
    """What the routes need of one server.

    Attributes:
        versions: returns the versions of specplug and of the engine.
        ask: returns the status of each engine.
        order: sends the fields of a validated `Order` to the engines; returns the resulting state of each.
        corpora: the server's corpora.
    """

    versions: Callable[[], dict[str, str]]
    ask: Callable[[], Awaitable[Engines]]
    order: Callable[[dict[str, Any]], Awaitable[Engines]]
    corpora: corpora_routes.CorpusRoutes


class Access(NamedTuple):
    """The clients that the routes answer.

    Attributes:
        operators: those that have access.
        keys: the server's own API keys, one of which is required where there is no operator's key; often none.
    """

    operators: Operators
    keys: Sequence[str] = ()


def attach(app: FastAPI, decorate: Callable[[Any], Any] = lambda route: route) -> None:
    """Add the routes to an app; an engine that marks its routes' functions does so with `decorate`.

    They read the app's state: `specplug_access` is an `Access`; `specplug` is an `OperatedServer`, or None on a server
    without specplug, where operators get a 404.
    """

    def add(path: str, route: Any, method: str, **more: Any) -> None:
        # Not by a router: engines look for the marks among the app's own routes.
        given = {"methods": [method], "tags": ["specplug"], "dependencies": [Depends(guard)], **more}
        app.add_api_route(f"/specplug{path}", decorate(route), **given)

    what = "specplug's status: settings and their origins, sources, counts, faults, the operator's control"
    add("/status", read_status, "GET", summary=what)
    what = "Switch speculation off or on, or limit the draft length; omitted fields stay unchanged"
    body = {"schema": Order.model_json_schema(), "examples": _EXAMPLES}
    extra = {"requestBody": {"required": True, "content": {"application/json": body}}}
    add("/mode", set_mode, "POST", summary=what, openapi_extra=extra)
    corpora_routes.attach(add)


async def read_status(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/status`."""
    server = served(request)
    return {"versions": server.versions(), "engines": await _answer(server.ask())}


async def set_mode(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/mode`."""
    server = served(request)
    try:
        order = await read_order(request.stream(), "/specplug/mode")
    except BodyError as error:
        raise HTTPException(error.status, str(error)) from error
    return {"engines": await _answer(server.order(order))}


async def guard(request: Request) -> None:
    """Refuse everyone except operators."""
    access: Access = request.app.state.specplug_access
    refused = access.operators.refusal(request.scope)
    if refused is not None:
        raise HTTPException(refused.status, refused.message)
    if access.keys and not access.operators.have_key:
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not any(_are_equal(shown, key) for key in access.keys):
            raise HTTPException(401, "Unauthorized")
    served(request)


def served(request: Request) -> OperatedServer:
    """Return the server that a request reaches."""
    server: OperatedServer | None = request.app.state.specplug
    if server is None:
        raise HTTPException(404, "specplug is not enabled on this server; start it with flags that name it")
    return server


async def _answer(pending: Awaitable[Engines]) -> Engines:
    """Return the engines' answer; an engine's failure is a 500."""
    try:
        return await pending
    except EngineError as error:
        raise HTTPException(500, str(error)) from error


def _are_equal(one: str, other: str) -> bool:
    """Compare keys, in a time that tells nothing about either."""
    return secrets.compare_digest(*(hashlib.sha256(key.encode()).digest() for key in (one, other)))
