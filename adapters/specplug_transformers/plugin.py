"""Hook implementations of the transformers adapter.  This module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.hooks import hookimpl
from specplug.plugins.specs import CheckSpec


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register a check that the installed transformers has the seams that this adapter uses."""
    register(
        CheckSpec(
            name="transformers",
            factory="specplug_transformers.seams:check",
            summary="the installed transformers has the seams that the adapter uses",
        )
    )
