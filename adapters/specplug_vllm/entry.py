"""What vLLM loads in each of its processes, before any configuration is made (``vllm.general_plugins``)."""

from __future__ import annotations

import logging

from specplug_vllm import seams
from specplug_vllm.frontend import intake
from specplug_vllm.startup import engine_config
from specplug_vllm.worker import factory


def register() -> None:
    """Make vLLM ready for specplug.  Cheap, idempotent, and without effect until a server asks for specplug.

    A vLLM whose configuration has moved is left alone: stock servers start, and one that asks for specplug is refused
    by `specplug_vllm.Proposer`.
    """
    if seams.moved("config"):
        return
    _log_as_vllm_does()
    engine_config.install()
    factory.install()
    intake.install()


def _log_as_vllm_does() -> None:
    """Let what specplug logs look like, and go where, vLLM's own log does, however that is configured later on."""
    logging.getLogger("specplug").parent = logging.getLogger("vllm")
