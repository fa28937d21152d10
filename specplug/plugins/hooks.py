"""Hooks through which a package registers plug-ins.

A plug-in package names a module in the entry-point group ``specplug``.  Functions of that module that are marked with
``specplug.hookimpl`` and have one of the names below receive a `register` callback:

    import specplug

    @specplug.hookimpl
    def specplug_register_proposers(register):
        register(specplug.ProposerSpec(name="echo", factory="my_package:Echo", summary="...", caps=...))
"""

from __future__ import annotations

from collections.abc import Callable

import pluggy

from specplug.plugins.specs import CheckSpec, PolicySpec, ProposerSpec, VerifierSpec

PROJECT = "specplug"
ENTRY_POINT_GROUP = "specplug"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def specplug_register_proposers(register: Callable[[ProposerSpec], None]) -> None:
    """Register proposers, which draft tokens."""


@hookspec
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register policies, which choose draft lengths and the draft tokens worth verifying."""


@hookspec
def specplug_register_verifiers(register: Callable[[VerifierSpec], None]) -> None:
    """Register verifiers, which decide which draft tokens are accepted."""


@hookspec
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register checks that `specplug doctor` runs."""
