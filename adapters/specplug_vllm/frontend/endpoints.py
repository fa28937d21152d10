"""The operator's HTTP routes, as an endpoint plug-in of vLLM in the API server process.

A server with specplug enabled has them unless ``VLLM_PLUGINS`` is set without ``specplug_http``.  By default vLLM loads
only endpoint plug-ins that ``VLLM_PLUGINS`` names, as it cannot know whether their routes are guarded.  These are, by
`specplug.operator.access`.  vLLM's own ``--api-key`` guards only the paths of its API; a server that has such a key,
but no operator's key, requires it here too.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request

from specplug.operator.access import Operators
from specplug.operator.bodies import BodyError, read_order
from specplug.operator.control import Order
from specplug.requests.clients import Clients
from specplug_vllm import seams
from specplug_vllm.config import is_requested
from specplug_vllm.frontend import corpora_routes
from specplug_vllm.worker import status

_GROUP = "vllm.endpoint_plugins"
_EXAMPLES = {
    "off": {"value": {"mode": "off"}},
    "on, at most 4 draft tokens": {"value": {"mode": "on", "num_speculative_tokens": 4}},
}


def install() -> None:
    """Make vLLM load these routes by default, in a process whose configuration enables specplug."""
    from vllm import plugins

    if not hasattr(plugins, "load_endpoint_plugins"):
        seams.available("routes")  # logs what is off
    elif not hasattr(plugins.load_endpoint_plugins, "_specplug"):
        plugins.load_endpoint_plugins = _with_ours(plugins.load_endpoint_plugins)


def _with_ours(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    @functools.wraps(original)
    def load_endpoint_plugins(supported_tasks: Any = None) -> list[Any]:
        import vllm.envs as envs

        if envs.VLLM_PLUGINS is not None:
            return [*original(supported_tasks), _ClientsKept()]
        others = {point.name for point in entry_points(group=_GROUP)} - {SpecplugEndpoints.name}
        found = original(supported_tasks) if others else []  # vLLM warns of each plug-in that it skips
        fits = set(SpecplugEndpoints.required_tasks) & set(supported_tasks or ())
        return [*found, *([SpecplugEndpoints()] if fits else ()), _ClientsKept()]

    load_endpoint_plugins._specplug = True  # type: ignore[attr-defined]
    return load_endpoint_plugins


class _ClientsKept:
    """Endpoint plug-in of vLLM that adds the middleware to distinguish requests' clients, and no routes."""

    name = "specplug_clients"
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """Add the middleware."""
        app.add_middleware(Clients)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Do nothing."""


class SpecplugEndpoints:
    """Adds `GET /specplug/status`, `POST /specplug/mode`, and those of `corpora_routes`."""

    name = "specplug_http"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        if not seams.available("routes"):
            return
        router = APIRouter(prefix="/specplug", tags=["specplug"], dependencies=[Depends(guard)])
        router.add_api_route(
            "/status",
            read_status,
            methods=["GET"],
            summary="specplug's status: settings and their origins, sources, counts, faults, the operator's control",
        )
        body = {"schema": Order.model_json_schema(), "examples": _EXAMPLES}
        router.add_api_route(
            "/mode",
            set_mode,
            methods=["POST"],
            summary="Switch speculation off or on, or limit the draft length; omitted fields stay unchanged",
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": body}}},
        )
        corpora_routes.attach(router)
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Store the engine client, the corpora and the accepted keys for the routes."""
        if not seams.available("routes"):
            return
        import vllm.envs as envs

        state.specplug_engine = engine_client
        requested = engine_client is not None and is_requested(engine_client.vllm_config)
        state.specplug_corpora = corpora_routes.CorpusRoutes(engine_client.vllm_config) if requested else None
        keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
        state.specplug_keys = [_digest(key) for key in keys]
        state.specplug_operators = Operators()


async def read_status(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/status`."""
    client = _client(request)
    return {"versions": status.versions(), "engines": await status.ask_engines(client, "specplug_status")}


async def set_mode(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/mode`."""
    client = _client(request)
    try:
        order = await read_order(request.stream(), "/specplug/mode")
    except BodyError as error:
        raise HTTPException(error.status, str(error)) from error
    return {"engines": await status.ask_engines(client, "specplug_control", order)}


async def guard(request: Request) -> None:
    """Refuse everyone except operators.  Without an operator's key, require the server's API key if it has one."""
    operators: Operators = request.app.state.specplug_operators
    refused = operators.refusal(request.scope)
    if refused is not None:
        raise HTTPException(refused.status, refused.message)
    if operators.have_key:
        return
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    keys = request.app.state.specplug_keys
    shown = _digest(key) if scheme.lower() == "bearer" else b""
    if keys and not any(secrets.compare_digest(shown, known) for known in keys):
        raise HTTPException(401, "Unauthorized")


def _client(request: Request) -> Any:
    """Return the client of the engine cores."""
    engine = request.app.state.specplug_engine
    if engine is None or not is_requested(engine.vllm_config):
        raise HTTPException(
            404, "specplug is not enabled on this server; start it with a --speculative-config that names it"
        )
    return engine.engine_core


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
