"""Hook implementations of the vLLM adapter.  This module imports neither torch nor vllm."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.specs import CheckSpec, hookimpl

_CHECKS = {
    ("vllm", "installed"): "the installed vLLM is supported and loads specplug",
    ("vllm import", "imports"): "the installed vLLM imports and has the seams that the adapter uses",
    (
        "vllm launch",
        "launch",
    ): "the server that a launch line starts: runner, token budget, what it refuses and what it costs",
}
"""What each check of `specplug doctor` is about, by its name and its function."""


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register the vLLM checks of `specplug doctor`."""
    for (name, function), summary in _CHECKS.items():
        factory = f"specplug_vllm.doctor:{function}"
        takes_launch = function == "launch"
        register(CheckSpec(name=name, factory=factory, summary=summary, takes_launch=takes_launch))
