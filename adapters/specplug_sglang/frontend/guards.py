"""SGLang's own routes that show or change what is an operator's: that part of them is kept to operators.

SGLang asks for its own keys there, where it has some.  The routes of corpora are closed to others altogether.
``/server_info`` lacks specplug's status for others, and ``/set_internal_state`` takes no orders to specplug from them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from specplug.operator.access import Operators, Refusal
from specplug_sglang.scheduler.status import KEY, LIMIT, MODE

_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
_CORPORA = ("/add_external_corpus", "/remove_external_corpus", "/list_external_corpora")
_STATES = ("/server_info", "/get_server_info", "/set_internal_state")

_refused: ContextVar[Refusal | None] = ContextVar("specplug_refused", default=None)
"""How somebody who is no operator is to be refused, while one of `_STATES` serves his request."""


def install_hooks() -> None:
    """Hook into what `_STATES` call, in this process; nothing changes where they do not serve specplug."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_FRONT}.get_internal_state", states_shown, HookType.AROUND)
    HookRegistry.register(f"{_FRONT}.set_internal_state", state_ordered, HookType.AROUND)


def install(app: Any, operators: Operators) -> None:
    """Guard an app's routes, once."""
    for route in app.routes:
        path = getattr(route, "path", None)
        if path in _CORPORA:
            route.app = operators.guarding(route.app)
        elif path in _STATES:
            route.app = _noting(route.app, operators)


def _noting(app: Any, operators: Operators) -> Any:
    async def noted(scope: Any, receive: Any, send: Any) -> None:
        token = _refused.set(operators.refusal(scope))
        try:
            await app(scope, receive, send)
        finally:
            _refused.reset(token)

    return noted


async def states_shown(original: Callable[..., Any], manager: Any) -> Any:
    """Stand around `get_internal_state`, whose answer lacks the status for who is no operator."""
    states = await original(manager)
    if _refused.get() is None:
        return states
    return [{key: value for key, value in state.items() if key != KEY} for state in states]


async def state_ordered(original: Callable[..., Any], manager: Any, obj: Any) -> Any:
    """Stand around `set_internal_state`, which takes orders to specplug from operators only."""
    refused = _refused.get()
    if refused is not None and not {MODE, LIMIT}.isdisjoint(obj.server_args):
        from fastapi import HTTPException

        raise HTTPException(refused.status, refused.message)
    return await original(manager, obj)
