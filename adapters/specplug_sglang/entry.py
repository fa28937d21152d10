"""What SGLang loads in each of its processes (``sglang.srt.plugins``).

SGLang logs what a plug-in raises and goes on, so that a user would read of an unknown algorithm only.  So nothing is
raised here: what is wrong is kept, and told where SGLang asks for the algorithm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from specplug.errors import EngineError, SpecplugError
from specplug.operator import startup_errors
from specplug_sglang import seams
from specplug_sglang.config import ALGORITHM
from specplug_sglang.seams.table import VERSIONS

_log = logging.getLogger("specplug")


def register() -> None:
    """Make SGLang ready for specplug.  Cheap, idempotent, and without effect until a server asks for specplug."""
    _log_as_sglang_does()
    try:
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.speculative.spec_registry import get_spec

        if get_spec(ALGORITHM) is None:
            SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, **_options())(_worker)
    except Exception as error:  # what would tell the user is what has moved
        _log.error("--speculative-algorithm %s is not there. %s", ALGORITHM, _broken(error))


def _options() -> dict[str, Any]:
    """Install every hook, and return what is registered beside; where that fails, what tells a server that asks."""
    try:
        if seams.moved("algorithm"):
            return {"validate_server_args": lambda server_args: _refuse(lambda: seams.require("algorithm"))}
        from specplug_sglang import hooks
        from specplug_sglang.startup.algorithm import Algorithm

        hooks.install()
        return {"spec_class": Algorithm}
    except Exception as error:
        broken = _broken(error)
        return {"validate_server_args": lambda server_args: _refuse(lambda: _raise(broken))}


def _refuse(check: Callable[[], None]) -> None:
    """Raise what a check raises as the kind of error that SGLang's users know for wrong arguments."""
    try:
        check()
    except SpecplugError as error:
        startup_errors.show_message_only()
        raise ValueError(str(error)) from error


def _raise(error: Exception) -> None:
    raise error


def _broken(error: Exception) -> SpecplugError:
    if isinstance(error, SpecplugError):
        return error
    return EngineError.build(
        "could not be set up in this SGLang",
        who="specplug_sglang",
        found=f"{type(error).__name__}: {error}",
        expected=str(VERSIONS),
        remedy=f"{VERSIONS.remedy}, or start without --speculative-algorithm {ALGORITHM}",
    )


def _worker(server_args: Any) -> type:
    """Return the class of the worker that drafts and verifies."""
    from specplug_sglang.scheduler.worker import Worker

    return Worker


def _log_as_sglang_does() -> None:
    """Let what specplug logs look like, and go where, SGLang's own log does, however that is configured later on."""
    logging.getLogger("specplug").parent = logging.getLogger("sglang")
