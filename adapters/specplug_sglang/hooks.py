"""Every hook into SGLang, installed in each process before it knows what it will serve."""

from __future__ import annotations


def install() -> None:
    """Install them, once per process.  Each looks at the server's arguments itself, and stands aside if unasked."""
    from specplug_sglang import corpora, events, front, intake, status

    for part in (intake, front, status, events, corpora):
        part.install()
