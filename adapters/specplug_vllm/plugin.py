"""Hook implementations of the vLLM adapter.  This module imports neither torch nor vllm."""

from __future__ import annotations

from collections.abc import Callable

from specplug.plugins.hooks import hookimpl
from specplug.plugins.specs import CheckSpec


@hookimpl
def specplug_register_checks(register: Callable[[CheckSpec], None]) -> None:
    """Register the vLLM checks of `specplug doctor`."""
    register(
        CheckSpec(
            name="vllm",
            factory="specplug_vllm.doctor:installed",
            summary="the installed vLLM is supported, has the seams that the adapter uses, and loads specplug",
        )
    )
    register(
        CheckSpec(
            name="vllm import",
            factory="specplug_vllm.doctor:imports",
            summary="the installed vLLM imports",
        )
    )
    register(
        CheckSpec(
            name="vllm launch",
            factory="specplug_vllm.doctor:launch",
            summary="the server that a launch line starts: runner, token budget, what it refuses and what it costs",
            takes_launch=True,
        )
    )
