"""Entry point of the adapter (``vllm.general_plugins``).  vLLM calls it in every process, before it builds a config."""

from __future__ import annotations

import logging

from specplug_vllm import seams
from specplug_vllm.frontend import intake
from specplug_vllm.startup import engine_config
from specplug_vllm.worker import factory


def register() -> None:
    """Install specplug's patches.  Cheap, idempotent, and without effect until a server enables specplug.

    If the seams of vLLM's configuration have moved, nothing is patched: servers without specplug start as usual, and
    `specplug_vllm.Proposer` refuses one that enables it.
    """
    if seams.moved("config"):
        return
    _log_as_vllm_does()
    engine_config.install()
    factory.install()
    intake.install()


def _log_as_vllm_does() -> None:
    """Make vLLM's logger the parent of specplug's, so that specplug follows vLLM's log format and handlers."""
    logging.getLogger("specplug").parent = logging.getLogger("vllm")
