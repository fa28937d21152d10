"""Hook implementations of the SGLang adapter.  This module imports neither torch nor sglang."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.hooks import hookimpl
from specplug.plugins.specs import CheckSpec


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register the SGLang checks of `specplug doctor`."""
    register(
        CheckSpec(
            name="sglang",
            factory="specplug_sglang.doctor:installed",
            summary="the installed SGLang is supported, has the seams that the adapter uses, and loads specplug",
        )
    )
    register(
        CheckSpec(
            name="sglang import",
            factory="specplug_sglang.doctor:imports",
            summary="the installed SGLang imports",
        )
    )
    register(
        CheckSpec(
            name="sglang launch",
            factory="specplug_sglang.doctor:launch",
            summary="the server that a launch line starts: chains or trees, draft lengths and their graphs, what is "
            "refused and what it costs",
            takes_launch=True,
        )
    )
