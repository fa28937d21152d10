"""The host of SGLang; see `tests.engines.host`."""

from __future__ import annotations

import multiprocessing
import signal
from typing import Any

from tests.engines.host import die_with_parent, main

MODULES = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.speculative.ngram_worker",
)


def build(arguments: dict[str, Any]) -> Any:
    """Return an `Engine`, whose scheduler is forked from this process and so need not import SGLang again."""
    import sglang.srt.entrypoints.engine as module

    die_with_parent(signal.SIGKILL)  # SGLang takes a SIGTERM for itself; its scheduler goes with us

    set_envs = module._set_envs_and_config

    def then_fork(*args: Any, **kwargs: Any) -> None:
        set_envs(*args, **kwargs)
        multiprocessing.set_start_method("fork", force=True)

    module._set_envs_and_config = then_fork
    return module.Engine(**arguments)


if __name__ == "__main__":
    main(MODULES, build)
