"""Choice of the worker that runs on a server whose drafts SGLang's own draft model makes."""

from __future__ import annotations

from typing import Any

from specplug_sglang.config import engine_method


def install() -> None:
    """Hook SGLang's choice of a worker, in each process; servers without specplug are unchanged."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", chosen, HookType.AFTER)


def chosen(worker: Any, algorithm: Any, server_args: Any) -> Any:
    """Return the class of the worker, given the one that SGLang chose."""
    if engine_method(server_args) is None:
        return worker
    from specplug_sglang.scheduler.engine_worker import planned

    return planned(worker)
