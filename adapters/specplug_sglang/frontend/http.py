"""Hooks that add the operator's routes and metrics in each process that serves HTTP, if specplug is enabled."""

from __future__ import annotations

import sys
from typing import Any

from specplug_sglang.config import is_requested
from specplug_sglang.frontend import exporter, guards, tool_streams

_SERVER = "sglang.srt.entrypoints.http_server"
_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"


def install() -> None:
    """Hook this process's HTTP front end; servers without specplug are unchanged."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_FRONT}.init_communicators", front_made, HookType.AFTER)
    guards.install_hooks()
    exporter.install()


def front_made(result: Any, manager: Any) -> None:
    """Add the routes to the app of a new `TokenizerManager` that will be served over HTTP.

    Its streams are parsed token by token.

    SGLang imports its HTTP server before it creates the manager; an offline `Engine` does not import it.
    """
    if _SERVER in sys.modules and is_requested(manager.server_args):
        from specplug_sglang.frontend.endpoints import attach

        attach(sys.modules[_SERVER].app, manager)
        tool_streams.install(manager.tokenizer)
