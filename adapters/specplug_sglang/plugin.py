"""Hook implementations of the SGLang adapter.  This module imports neither torch nor sglang."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import CheckSpec, hookimpl

_CHECKS = {
    ("sglang", "installed"): "the installed SGLang is supported and loads specplug",
    ("sglang import", "imports"): "the installed SGLang imports and has the seams that the adapter uses",
    ("sglang launch", "launch"): "the server that a launch line starts: chains or trees, draft lengths and their "
    "graphs, what is refused and what it costs",
}
"""What each check of `specplug doctor` is about, by its name and its function."""


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register the SGLang checks of `specplug doctor`."""
    for (name, function), summary in _CHECKS.items():
        factory = f"specplug_sglang.doctor:{function}"
        takes_launch = function == "launch"
        register(CheckSpec(name=name, factory=factory, summary=summary, takes_launch=takes_launch))
