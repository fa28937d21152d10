"""Guards on SGLang's own routes that show or change specplug's state, which only operators may use.

SGLang also checks its own keys there, if it has any.  For other clients ``/server_info`` omits specplug's status, and
``/set_internal_state`` refuses orders to specplug.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from specplug.operator.access import Operators, Refusal
from specplug_sglang.status import KEY, LIMIT, MODE

_STATES = ("/server_info", "/get_server_info", "/set_internal_state")

_refused: ContextVar[Refusal | None] = ContextVar("specplug_refused", default=None)
"""Refusal for a client that is not an operator, while one of `_STATES` serves its request; None for operators."""


def install(app: Any, operators: Operators) -> None:
    """Guard an app's routes, once."""
    for route in app.routes:
        if getattr(route, "path", None) in _STATES:
            route.app = _noting(route.app, operators)


def _noting(app: Any, operators: Operators) -> Any:
    async def noted(scope: Any, receive: Any, send: Any) -> None:
        token = _refused.set(operators.refusal(scope))
        try:
            await app(scope, receive, send)
        finally:
            _refused.reset(token)

    return noted


async def show_states(original: Callable[..., Any], manager: Any) -> Any:
    """Wrap `get_internal_state` and remove the status from the answer for clients that are not operators."""
    states = await original(manager)
    if _refused.get() is None:
        return states
    return [{key: value for key, value in state.items() if key != KEY} for state in states]


async def order_state(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Wrap `set_internal_state` and accept orders to specplug from operators only."""
    refused = _refused.get()
    if refused is not None and not {MODE, LIMIT}.isdisjoint(obj.server_args):
        from fastapi import HTTPException

        raise HTTPException(refused.status, refused.message)
    return await original(manager, obj)
