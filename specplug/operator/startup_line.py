"""The line that every engine logs when it starts with specplug."""

from __future__ import annotations

from importlib.metadata import version

from specplug.settings.model import Settings


def start_line(settings: Settings, most: int, *engine: str, status: str = "") -> str:
    """Return what drafts, how much, and where to look at it.

    Args:
        settings: the server's.
        most: draft tokens per request and step, as the engine settled them.
        engine: how this engine runs, in a word or two each.
        status: of ``/specplug/status``: on, or off and how to turn it on; empty where there is no HTTP.
    """
    proposers = " + ".join((settings.proposer, *settings.extra_proposers))
    parts = [proposers, f"policy {settings.policy}", f"up to {most} draft tokens", *engine]
    if settings.mode == "off":
        parts.append("switched off by mode 'off'")
    line = f"specplug {version('specplug')}: {', '.join(parts)}"
    return f"{line}; /specplug/status: {status}" if status else line
