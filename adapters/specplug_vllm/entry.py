"""What vLLM loads in each of its processes, before any configuration is made (``vllm.general_plugins``)."""

from __future__ import annotations

from specplug_vllm import config, factory, intake, seams


def register() -> None:
    """Make vLLM ready for specplug.  Cheap, idempotent, and without effect until a server asks for specplug.

    A vLLM whose configuration has moved is left alone: stock servers start, and one that asks for specplug is refused
    by `specplug_vllm.Proposer`.
    """
    if seams.moved("config"):
        return
    config.install()
    factory.install()
    intake.install()
