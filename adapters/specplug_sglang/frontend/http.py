"""Hooks on SGLang's HTTP front end, in each process that may serve HTTP: the operator's routes, metrics, and corpora.

SGLang serves /metrics only with ``--enable-metrics``.  Its own routes for external corpora serve its n-gram, and name
specplug's routes instead.  Servers without specplug are unchanged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from specplug_sglang import seams
from specplug_sglang.config import is_requested, proposes
from specplug_sglang.frontend import guards, tool_streams

MESSAGE = (
    "these routes serve SGLang's own n-gram; specplug lists, adds and removes corpora at /specplug/corpora, "
    "in the store that corpora.store names"
)

_SERVER = "sglang.srt.entrypoints.http_server"
_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
_ADDS_METRICS = "sglang.srt.utils.common.add_prometheus_middleware"
_ANSWERS = {
    "add_external_corpus": "AddExternalCorpusReqOutput",
    "remove_external_corpus": "RemoveExternalCorpusReqOutput",
    "list_external_corpora": "ListExternalCorporaReqOutput",
}
"""Methods that SGLang's routes for corpora call, and the types of their answers."""


def install() -> None:
    """Hook this process's HTTP front end."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_FRONT}.init_communicators", front_made, HookType.AFTER)
    HookRegistry.register(f"{_FRONT}.get_internal_state", guards.states_shown, HookType.AROUND)
    HookRegistry.register(f"{_FRONT}.set_internal_state", guards.state_ordered, HookType.AROUND)
    HookRegistry.register(_ADDS_METRICS, metrics_made, HookType.AFTER)
    for name, answer in _ANSWERS.items():
        HookRegistry.register(f"{_FRONT}.{name}", functools.partial(_refuse, answer), HookType.AROUND)


def front_made(result: Any, manager: Any) -> None:
    """Add the routes to the app of a new `TokenizerManager` that will be served over HTTP.

    Its streams are parsed token by token.

    SGLang imports its HTTP server before it creates the manager; an offline `Engine` does not import it.
    """
    if _SERVER in sys.modules and is_requested(manager.server_args):
        from specplug_sglang.frontend.endpoints import attach

        attach(sys.modules[_SERVER].app, manager)
        tool_streams.install(manager.tokenizer)


def metrics_made(result: Any, app: Any) -> None:
    """Export the metrics of an app's engines once its /metrics exists; called in the app's event loop.

    The exporter is imported late: prometheus_client decides at import whether counts are shared between processes, and
    SGLang enables that after it loads plug-ins.
    """
    server = getattr(app.state, "specplug", None)
    if server is None or not seams.available("metrics"):
        return
    from specplug.operator.exporter import exporter

    collector = exporter()
    collector.watch(server.ask)
    route = next(route for route in reversed(app.routes) if getattr(route, "path", None) == "/metrics")
    serve = route.app

    @functools.wraps(serve)
    async def refreshing_first(scope: Any, receive: Any, send: Any) -> None:
        await collector.refresh()  # in the event loop that the engines answer in
        await serve(scope, receive, send)

    route.app = refreshing_first


async def _refuse(answer: str, original: Callable[..., Any], manager: Any, *args: Any) -> Any:
    if not proposes(manager.server_args):
        return await original(manager, *args)
    from sglang.srt.managers import io_struct

    return getattr(io_struct, answer)(success=False, message=MESSAGE)
