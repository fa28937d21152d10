"""specplug's metrics on SGLang's /metrics: see `specplug.operator.exporter`.

SGLang serves /metrics with ``--enable-metrics`` only; without it nothing here runs.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug_sglang import seams, status

_ADDS_METRICS = "sglang.srt.utils.common.add_prometheus_middleware"


def install() -> None:
    """Hook into SGLang's making of /metrics.  An app that does not serve specplug's routes is left alone.

    The exporter is imported there, not before: prometheus_client decides when it is imported whether counts are shared
    between processes, and SGLang asks for that later than it loads plug-ins.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ADDS_METRICS, metrics_made, HookType.AFTER)


def metrics_made(result: Any, app: Any) -> None:
    """Export the metrics of the engines behind an app whose /metrics was made just now, in its event loop."""
    manager = getattr(app.state, "specplug", None)
    if manager is None or not seams.available("metrics"):
        return
    from specplug.operator.exporter import exporter

    collector = exporter()
    collector.watch(functools.partial(status.ask, manager))
    route = next(route for route in reversed(app.routes) if getattr(route, "path", None) == "/metrics")
    route.app = _asking_first(route.app, collector)


def _asking_first(app: Any, collector: Any) -> Any:
    """Return an ASGI app that has the engines asked before a scrape, which runs in the loop that they answer in."""

    @functools.wraps(app)
    async def asking_first(scope: Any, receive: Any, send: Any) -> None:
        await collector.refresh()
        await app(scope, receive, send)

    return asking_first
