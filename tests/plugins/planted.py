"""Plug-ins that tests make of specs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from specplug import hookimpl
from specplug.plugins.registry import Owner, Registry


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


def registry_of(*modules: Any, **hooks: Any) -> Registry:
    """Return a registry of plug-ins' modules and of the specs of a planted one; all have to load."""
    registry = Registry()
    for module in (*modules, plugin(**hooks)) if hooks else modules:
        registry.add(module, Owner(module.__name__, "tests", "1"))
    assert registry.load_errors == ()
    return registry
