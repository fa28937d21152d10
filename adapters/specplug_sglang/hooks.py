"""Installation of every hook into SGLang, in each process, before its server arguments are known."""

from __future__ import annotations


def install() -> None:
    """Install the hooks, once per process.  Each reads the server's arguments and does nothing without specplug."""
    from specplug_sglang.frontend import corpora_routes, http, intake
    from specplug_sglang.scheduler import events, status

    for part in (intake, http, status, events, corpora_routes):
        part.install()
