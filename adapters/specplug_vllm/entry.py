"""What vLLM loads in each of its processes, before any configuration is made (``vllm.general_plugins``)."""

from __future__ import annotations

from specplug_vllm import config, factory, intake


def register() -> None:
    """Make vLLM ready for specplug.  Cheap, idempotent, and without effect until a server asks for specplug."""
    config.install()
    factory.install()
    intake.install()
