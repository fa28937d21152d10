"""Plug-ins that tests make of specs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from specplug import hookimpl


def plugin(**hooks: Any) -> ModuleType:
    """Return a plug-in whose hooks, named by their last word, register the specs or raise the exceptions given."""

    def registering(specs: Any) -> Any:
        def implementation(register: Any) -> None:
            for spec in specs:
                if isinstance(spec, Exception):
                    raise spec
                register(spec)

        return hookimpl(implementation)

    module = ModuleType("planted")
    for name, specs in hooks.items():
        setattr(module, f"specplug_register_{name}", registering(specs))
    return module
