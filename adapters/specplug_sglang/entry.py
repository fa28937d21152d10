"""Entry point of the adapter (``sglang.srt.plugins``).  SGLang calls it in each of its processes.

SGLang logs exceptions of a plug-in and continues, so the user would only see an "unknown algorithm" error.  Therefore
nothing is raised here: errors are kept, and raised when SGLang validates the arguments of a server with this algorithm.
"""

from __future__ import annotations

import logging
from typing import Any

from specplug.errors import EngineError, SpecplugError, describe
from specplug_sglang import seams
from specplug_sglang.config import ALGORITHM, HANDLES_ARGUMENTS, drafter, refusals
from specplug_sglang.seams import VERSIONS

_log = logging.getLogger("specplug")


def _worker(server_args: Any) -> type:
    from specplug_sglang.scheduler.worker import SpeculativeWorker

    return SpeculativeWorker


def register() -> None:
    """Register the algorithm and install the hooks.  Cheap, idempotent, without effect until a server enables it."""
    logging.getLogger("specplug").parent = logging.getLogger("sglang")  # whose format and handlers specplug follows
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.speculative.spec_registry import get_spec

        if get_spec(ALGORITHM) is None:
            SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, **_options())(_worker)
    except Exception as error:  # the seams that would report the error have moved themselves
        _log.error("--speculative-algorithm %s is not registered. %s", ALGORITHM, _broken(error))


def _options() -> dict[str, Any]:
    """Install every hook and return options for `SpeculativeAlgorithm.register`.

    If that fails, servers that enable specplug raise the error.
    """
    try:
        if seams.moved_seams("algorithm"):
            seams.require("algorithm")  # raises; else it could warn where no server enables specplug
        from specplug_sglang import hooks
        from specplug_sglang.arguments import Algorithm

        hooks.install()
        return {"spec_class": Algorithm}
    except Exception as error:
        return _refusing(_broken(error))


def _refusing(error: SpecplugError) -> dict[str, Any]:
    """Let servers with specplug's algorithm, or where specplug plans or extends SGLang's drafts, raise an error."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def refuse(server_args: Any) -> None:
        with refusals():
            raise error

    def refuse_plans(algorithm: Any, server_args: Any) -> None:
        if drafter(server_args):
            refuse(server_args)

    HookRegistry.register(HANDLES_ARGUMENTS, refuse_plans, HookType.BEFORE)
    return {"validate_server_args": refuse}


def _broken(error: Exception) -> SpecplugError:
    if isinstance(error, SpecplugError):
        return error
    return EngineError.build(
        "could not be set up in this SGLang",
        who="specplug_sglang",
        found=describe(error),
        expected=str(VERSIONS),
        remedy=f"{VERSIONS.remedy}, or start without --speculative-algorithm {ALGORITHM}",
    )
