"""Registration of the policy `batch`.  Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import PolicySpec, hookimpl


@hookimpl
def specplug_register_policies(register: Callable[[PolicySpec], None]) -> None:
    """Register the policy; its trim half is the default."""
    register(
        PolicySpec(
            name="batch",
            factory="specplug_batch.policy:build",
            summary="verifies the draft tokens that pay at the current batch size",
            options="specplug_batch.options:BatchOptions",
        )
    )
