"""Registration of the policy `adaptive`.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import PolicySpec, hookimpl


@hookimpl
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register the policy; its trim half is the default."""
    register(
        PolicySpec(
            name="adaptive",
            factory="specplug_adaptive.policy:build",
            summary="drafts for each request as far as its own acceptance pays",
            options="specplug_adaptive.policy:AdaptiveOptions",
        )
    )
