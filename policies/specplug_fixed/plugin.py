"""Registration of the policies `fixed` and `none`.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import PolicySpec, hookimpl


@hookimpl
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register both policies; they share the survival trimmer."""
    register(
        PolicySpec(
            name="fixed",
            factory="specplug_fixed.policy:ConstantGamma",
            summary="the same gamma at every step",
            options="specplug_fixed.policy:FixedOptions",
        )
    )
    register(PolicySpec(name="none", factory="specplug_fixed.policy:no_speculation", summary="no speculation"))
