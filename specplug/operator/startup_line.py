"""Start-up line that every engine logs when it runs with specplug."""

from __future__ import annotations

from importlib.metadata import version

from specplug.settings.model import Settings


def start_line(settings: Settings, most: int, *engine: str, status: str = "") -> str:
    """Return the line: proposers, policy, draft length, engine facts, and the state of the status route.

    Args:
        settings: the server's settings.
        most: most draft tokens per request and step, as resolved by the engine.
        engine: facts on how this engine runs, in a word or two each.
        status: state of ``/specplug/status``: on, or off and how to turn it on; empty without HTTP.
    """
    proposers = " + ".join((settings.proposer, *settings.extra_proposers))
    parts = [proposers, f"policy {settings.policy}", f"up to {most} draft tokens", *engine]
    if settings.mode == "off":
        parts.append("switched off by mode 'off'")
    line = f"specplug {version('specplug')}: {', '.join(parts)}"
    return f"{line}; /specplug/status: {status}" if status else line
