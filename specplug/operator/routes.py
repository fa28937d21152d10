"""The HTTP routes below `/specplug`, the same on every server: `status`, `mode`, `corpora` and `explain`.

Adapters attach them to their engine's FastAPI app and put an `OperatedServer` into the app's state.  The routes serve
operators only, see `specplug.operator.access`, but for `explain`, which serves tenants about their own requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request

from specplug.errors import RequestError, SpecplugError
from specplug.explain.explanation import Explanation
from specplug.explain.requests import Requests
from specplug.operator.access import Operators, Refusal
from specplug.operator.control import Order
from specplug.operator.corpus_admin import CorpusAdmin, http_status
from specplug.operator.explainer import Explainer
from specplug.operator.orders import EXAMPLES, add_order_schema, read_body, read_order

_EXAMPLES = {
    "off": {"value": {"mode": "off"}},
    "on, at most 4 draft tokens": {"value": {"mode": "on", "num_speculative_tokens": 4}},
}

T = TypeVar("T")

_CORPORA = "/specplug/corpora"
_IN_PARTS = ", corpora.max_request_bytes. Send part of the documents, and the others with 'extend': true"

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
        explainer: explains the server's requests.
    """

    versions: Callable[[], dict[str, str]]
    ask: Callable[[], Awaitable[Engines]]
    order: Callable[[dict[str, Any]], Awaitable[Engines]]
    corpora: CorpusAdmin
    explainer: Explainer


def attach(app: FastAPI, decorate: Callable[[Any], Any] = lambda route: route) -> None:
    """Add the routes to an app; an engine that marks its routes' functions does so with `decorate`.

    They read the app's state: `specplug_access` is its `Operators`; `specplug` is an `OperatedServer`, or None on a
    server without specplug, where operators get a 404.
    """

    def add(path: str, route: Any, method: str, summary: str, guarded: Any = guard, **more: Any) -> None:
        # Not by a router: engines look for the marks among the app's own routes.
        about = {"methods": [method], "tags": ["specplug"], "dependencies": [Depends(guarded)], "summary": summary}
        app.add_api_route(path, decorate(route), **about, openapi_extra=more or None)

    what = "specplug's status: settings and their origins, sources, counts, faults, the operator's control"
    add("/specplug/status", read_status, "GET", what)
    what = "Switch speculation off or on, or limit the draft length; omitted fields stay unchanged"
    add("/specplug/mode", set_mode, "POST", what, requestBody=_json(Order.model_json_schema(), _EXAMPLES))
    add(_CORPORA, list_corpora, "GET", "The corpora that proposers draft from, by tenant, and problems of the store")
    what = "Add a corpus, or documents to a corpus; all documents are added or none"
    add(_CORPORA, add_corpus, "POST", what, requestBody=_json(add_order_schema(), EXAMPLES))
    parameters = [_query("tenant", "the corpus's tenant"), _query("document", "remove only these documents", True)]
    what = "What drafted each token of an answer, and why it was slow, from the trace; without an id, the slow answers"
    named = [_query("request", "the answer's id, or the begin of it"), _query("tenant", "only of this tenant")]
    named += [_query("limit", "most answers of a list")]
    add("/specplug/explain", explain, "GET", what, guard_reader, parameters=named)
    what = "Remove a corpus, or documents of it"
    add(_CORPORA + "/{name:path}", remove_corpus, "DELETE", what, parameters=parameters)


async def read_status(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/status`."""
    server = find_server(request)
    return {"versions": server.versions(), "engines": await _answered(server.ask())}


async def set_mode(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/mode`."""
    server = find_server(request)
    order = await _answered(read_order(request.stream(), "/specplug/mode"))
    return {"engines": await _answered(server.order(order))}


async def list_corpora(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/corpora`."""
    _require_known(request, "tenant")
    return await _answered(find_server(request).corpora.list_corpora(request.query_params.get("tenant")))


async def add_corpus(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/corpora`."""
    corpora = find_server(request).corpora
    declared = request.headers.get("content-length", "")
    async with corpora.room:
        body = read_body(request.stream(), corpora.max_bytes, _CORPORA, declared=declared, hint=_IN_PARTS)
        return await _answered(corpora.add(await _answered(body), _CORPORA))


async def remove_corpus(request: Request) -> dict[str, Any]:
    """Answer `DELETE /specplug/corpora/{name}`."""
    _require_known(request, "tenant", several="document")  # else a misspelt key would remove the whole corpus
    query = request.query_params
    name = request.path_params["name"]
    return await _answered(
        find_server(request).corpora.remove(name, query.getlist("document"), query.get("tenant") or "")
    )


async def explain(request: Request) -> Explanation | Requests:
    """Answer `GET /specplug/explain`: one answer, or the slowest and the worst drafted ones."""
    explainer = find_server(request).explainer
    _require_known(request, "request", "tenant", "limit")
    query = request.query_params
    own, _ = explainer.reader(request.headers.raw)
    tenant = own or query.get("tenant")
    if name := query.get("request"):
        return await _answered(explainer.explain(name, tenant))
    limit = query.get("limit", "10")
    if not limit.isdecimal() or len(limit) > 9:
        raise HTTPException(400, f"bad value for limit; found {limit!r}; expected a number")
    return await _answered(explainer.requests(tenant, int(limit)))


async def guard(request: Request) -> None:
    """Refuse everyone except operators."""
    operators: Operators = request.app.state.specplug_access
    _refuse(operators.refusal(request.scope))
    find_server(request)


async def guard_reader(request: Request) -> None:
    """Refuse everyone except operators, and tenants whom their API keys identify."""
    server: OperatedServer | None = request.app.state.specplug
    operators: Operators = request.app.state.specplug_access
    try:
        is_tenant = server is not None and server.explainer.reader(request.headers.raw)[1]
    except RequestError as error:
        raise HTTPException(400, str(error)) from error
    if is_tenant:
        _refuse(operators.api_key_refusal(request.scope))
    else:
        await guard(request)


def _refuse(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.message)


def find_server(request: Request) -> OperatedServer:
    """Return the server that a request reaches."""
    server: OperatedServer | None = request.app.state.specplug
    if server is None:
        raise HTTPException(404, "specplug is not enabled on this server; start it with flags that name it")
    return server


def _require_known(request: Request, *keys: str, several: str = "") -> None:
    """Refuse other keys of the query than these, and those given twice, except `several`."""
    given = [key for key, _ in request.query_params.multi_items() if key != several]
    if wrong := sorted({key for key in given if key not in keys or given.count(key) > 1}):
        expected = f"{', '.join(keys)}, once each" + f", and {several}, any number of times" * bool(several)
        raise HTTPException(400, f"bad query; found {', '.join(map(repr, wrong))}; expected {expected}")


async def _answered(pending: Awaitable[T]) -> T:
    try:
        return await pending
    except SpecplugError as error:
        raise HTTPException(http_status(error), str(error)) from error


def _json(schema: dict[str, Any], examples: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema, "examples": examples}}}


def _query(name: str, description: str, several: bool = False) -> dict[str, Any]:
    text = {"type": "string"}
    schema = {"type": "array", "items": text} if several else text
    return {"name": name, "in": "query", "description": description, "required": False, "schema": schema}
