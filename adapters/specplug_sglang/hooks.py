"""Installation of every hook into SGLang, in each process, before its server arguments are known."""

from __future__ import annotations


def install() -> None:
    """Install the hooks, once per process.  Each reads the server's arguments and does nothing without specplug."""
    from specplug_sglang.frontend import external_corpora, http, intake
    from specplug_sglang.scheduler import choice, endings, events, status
    from specplug_sglang.startup import engine_drafter

    for part in (intake, http, status, events, external_corpora, engine_drafter, choice, endings):
        part.install()
