"""Export of specplug's metrics on SGLang's /metrics; see `specplug.operator.exporter`.

SGLang serves /metrics only with ``--enable-metrics``; without it nothing here runs.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug_sglang import seams

_ADDS_METRICS = "sglang.srt.utils.common.add_prometheus_middleware"


def install() -> None:
    """Hook the function that adds /metrics to an app.  An app without specplug's routes is unchanged.

    The hook imports the exporter late: prometheus_client decides at import whether counts are shared between processes,
    and SGLang enables that after it loads plug-ins.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ADDS_METRICS, metrics_made, HookType.AFTER)


def metrics_made(result: Any, app: Any) -> None:
    """Export the metrics of an app's engines once its /metrics exists; called in the app's event loop."""
    server = getattr(app.state, "specplug", None)
    if server is None or not seams.available("metrics"):
        return
    from specplug.operator.exporter import exporter

    collector = exporter()
    collector.watch(server.ask)
    route = next(route for route in reversed(app.routes) if getattr(route, "path", None) == "/metrics")
    route.app = _refreshing_first(route.app, collector)


def _refreshing_first(app: Any, collector: Any) -> Any:
    """Return an ASGI app that refreshes the engines' metrics before a scrape, in the event loop they answer in."""

    @functools.wraps(app)
    async def refreshing_first(scope: Any, receive: Any, send: Any) -> None:
        await collector.refresh()
        await app(scope, receive, send)

    return refreshing_first
