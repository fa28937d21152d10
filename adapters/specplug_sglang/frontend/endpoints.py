"""The operator's HTTP routes on SGLang's own server, present whenever specplug is enabled.

They serve operators only, see `specplug.operator.access`; SGLang's ``--admin-api-key`` is an operator's key.  SGLang
checks its own keys first, as it does on ``/set_internal_state``.
"""

from __future__ import annotations

from typing import Any

from fastapi import Depends, HTTPException, Request

from specplug.errors import EngineError
from specplug.operator.access import Operators
from specplug.operator.bodies import BodyError, read_order
from specplug.operator.control import Order
from specplug_sglang import status
from specplug_sglang.config import resolved
from specplug_sglang.frontend import guards

_EXAMPLES = {
    "off": {"value": {"mode": "off"}},
    "on, at most 4 draft tokens": {"value": {"mode": "on", "num_speculative_tokens": 4}},
}


def attach(app: Any, manager: Any) -> None:
    """Add `GET /specplug/status` and `POST /specplug/mode` to the app of a `TokenizerManager`."""
    from sglang.srt.utils.auth import AuthLevel, auth_level

    is_new = not hasattr(app.state, "specplug")
    app.state.specplug = manager
    app.state.specplug_operators = operators = Operators([manager.server_args.admin_api_key])
    if not is_new:
        return
    guards.install(app, operators, resolved(manager.server_args).settings.corpora.max_request_bytes)
    app.add_api_route(
        "/specplug/status",
        auth_level(AuthLevel.ADMIN_OPTIONAL)(read_status),
        methods=["GET"],
        tags=["specplug"],
        dependencies=[Depends(guard)],
        summary="specplug's status: settings and their origins, sources, counts, faults, the operator's control",
    )
    body = {"schema": Order.model_json_schema(), "examples": _EXAMPLES}
    app.add_api_route(
        "/specplug/mode",
        auth_level(AuthLevel.ADMIN_OPTIONAL)(set_mode),
        methods=["POST"],
        tags=["specplug"],
        dependencies=[Depends(guard)],
        summary="Switch speculation off or on, or limit the draft length; omitted fields stay unchanged",
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": body}}},
    )


async def guard(request: Request) -> None:
    """Refuse everyone except operators."""
    refused = request.app.state.specplug_operators.refusal(request.scope)
    if refused is not None:
        raise HTTPException(refused.status, refused.message)


async def read_status(request: Request) -> dict[str, Any]:
    """Answer `GET /specplug/status`."""
    return {"versions": status.versions(), "engines": await _answer(status.ask(request.app.state.specplug))}


async def set_mode(request: Request) -> dict[str, Any]:
    """Answer `POST /specplug/mode`."""
    try:
        order = await read_order(request.stream(), "/specplug/mode")
    except BodyError as error:
        raise HTTPException(error.status, str(error)) from error
    return {"engines": await _answer(status.order(request.app.state.specplug, order))}


async def _answer(pending: Any) -> Any:
    """Return the engines' answer; an engine's failure is a 500."""
    try:
        return await pending
    except EngineError as error:
        raise HTTPException(500, str(error)) from error
