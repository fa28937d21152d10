"""Export of specplug's metrics on vLLM's /metrics; see `specplug.operator.exporter`."""

from __future__ import annotations

import functools
from typing import Any

from specplug.operator.exporter import exporter
from specplug_vllm import seams
from specplug_vllm.config import is_requested
from specplug_vllm.worker import status


def install() -> None:
    """Export the metrics of engines that this process starts or connects to.  Called if specplug is enabled."""
    if not seams.available("metrics"):
        return
    from vllm.v1.engine.core_client import EngineCoreClient

    original = EngineCoreClient.make_async_mp_client
    if hasattr(original, "_specplug"):
        return

    @functools.wraps(original)
    def make_async_mp_client(vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        client = original(vllm_config, *args, **kwargs)
        if is_requested(vllm_config):
            exporter().watch(functools.partial(status.ask_engines, client, "specplug_status"))
        return client

    make_async_mp_client._specplug = True  # type: ignore[attr-defined]
    EngineCoreClient.make_async_mp_client = staticmethod(make_async_mp_client)
