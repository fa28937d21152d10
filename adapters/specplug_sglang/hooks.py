"""Every hook into SGLang, installed in each process before it knows what it will serve."""

from __future__ import annotations


def install() -> None:
    """Install them, once per process.  Each reads the server's arguments itself, and does nothing without specplug."""
    from specplug_sglang.frontend import corpora_routes, http, intake
    from specplug_sglang.scheduler import events, status

    for part in (intake, http, status, events, corpora_routes):
        part.install()
