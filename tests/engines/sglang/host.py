"""The host of SGLang; see `tests.engines.host`."""

from __future__ import annotations

import multiprocessing
import runpy
import signal
import sys
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
    """Return an `Engine`, whose scheduler is forked from this process and so need not import SGLang again.

    Or be such a server, if there is a command that starts one.
    """
    import sglang.srt.entrypoints.engine as module

    die_with_parent(signal.SIGKILL)  # SGLang takes a SIGTERM for itself; its scheduler goes with us

    set_envs = module._set_envs_and_config

    def then_fork(*args: Any, **kwargs: Any) -> None:
        set_envs(*args, **kwargs)
        multiprocessing.set_start_method("fork", force=True)

    module._set_envs_and_config = then_fork
    if "command" not in arguments:
        return module.Engine(**arguments)
    sys.argv = arguments["command"][2:]
    return runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(MODULES, build)
