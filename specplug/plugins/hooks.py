"""The hooks by which a package adds plug-ins.

A plug-in package names a module in the entry-point group ``specplug``; functions there that are marked with
``specplug.hookimpl`` and carry one of the names below receive a `register` callback:

    import specplug

    @specplug.hookimpl
    def specplug_register_proposers(register):
        register(specplug.ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=...))
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

from specplug.plugins.specs import CheckSpec, EngineSpec, PolicySpec, ProposerSpec, VerifierSpec

PROJECT = "specplug"
ENTRY_POINT_GROUP = "specplug"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register proposers: what drafts tokens."""


@hookspec
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register policies: how wide to speculate, and which draft tokens are worth verifying."""


@hookspec
def specplug_register_verifiers(register: Callable[[VerifierSpec], None]) -> None:
    """Register verifiers: which draft tokens are accepted."""


@hookspec
def specplug_register_engines(register: Callable[[EngineSpec], None]) -> None:
    """Register engines that `specplug generate`, `demo` and `bench` can drive."""


@hookspec
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register checks that `specplug doctor` runs."""
