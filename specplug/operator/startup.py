"""What a server says at its start: one line of what it runs, or an error's message without a traceback."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specplug.errors import SpecplugError, describe
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER, HYBRID, ProposerSpec
from specplug.types.caps import EngineCaps

if TYPE_CHECKING:
    from specplug.settings.model import Settings

_log = logging.getLogger(__name__)

DEBUG_VARIABLE = "SPECPLUG_DEBUG"
"""Environment variable that shows tracebacks, as the command line's ``--debug`` does."""


def show_message_only() -> None:
    """Make this process print only the message, without a traceback, if a specplug error ends it.

    Engines build their configuration deep inside their own code, whose traceback of forty lines does not help a user
    who misspelt a setting.  Call this where such an error is raised.  It has no effect on code that catches the error.
    """
    if os.environ.get(DEBUG_VARIABLE) or hasattr(sys.excepthook, "_specplug"):
        return
    original = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        own = next((each for each in (error, error.__cause__) if isinstance(each, SpecplugError)), None)
        if own is None:
            original(kind, error, traceback)
        else:
            print(f"error: {own}", file=sys.stderr)

    show._specplug = True  # type: ignore[attr-defined]
    sys.excepthook = show


def refuse_missing(settings: Settings, device: str) -> None:
    """Refuse proposers that lack what they need, such as a draft model, before the target's weights are loaded.

    They say so where they declare their memory.  Other errors there are the workers', whose context has more.

    Args:
        settings: the server's settings.
        device: the type of the target's device.

    Raises:
        SpecplugError: a worker would raise it minutes later.
    """
    import torch

    from specplug.interfaces import PluginContext
    from specplug.settings.checks import plugin_options

    registry = default_registry()
    context = PluginContext(EngineCaps(max_draft_length=settings.num_speculative_tokens), device=torch.device(device))
    names = [settings.proposer, *settings.extra_proposers]
    if HYBRID in names:
        options: Any = plugin_options(settings, registry.get(ProposerSpec, HYBRID))
        names += [options.lookup, options.model]
    for name in names:
        if name == ENGINE_DRAFTER:
            continue
        spec = registry.get(ProposerSpec, name)
        try:
            spec.memory_for(replace(context, options=plugin_options(settings, spec)))
        except SpecplugError:
            raise
        except Exception as error:
            _log.debug("whether %s starts is not known yet: %s", name, describe(error))


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
