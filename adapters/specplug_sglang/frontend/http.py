"""What a server's front gains where it asks for specplug: the operator's routes, in each process that serves HTTP."""

from __future__ import annotations

import sys
from typing import Any

from specplug_sglang.config import is_requested
from specplug_sglang.frontend import exporter, guards

_SERVER = "sglang.srt.entrypoints.http_server"
_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"


def install() -> None:
    """Hook into the fronts of this process; nothing is added to those of servers that do not ask for specplug."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_FRONT}.init_communicators", front_made, HookType.AFTER)
    guards.install_hooks()
    exporter.install()


def front_made(result: Any, manager: Any) -> None:
    """Take note of a new `TokenizerManager`: its server's app gets the routes, if it is to be served over HTTP.

    SGLang imports its HTTP server before it makes one, and `Engine` does not import it.
    """
    if _SERVER in sys.modules and is_requested(manager.server_args):
        from specplug_sglang.frontend.endpoints import attach

        attach(sys.modules[_SERVER].app, manager)
