"""What SGLang loads in each of its processes (``sglang.srt.plugins``).

SGLang logs what a plug-in raises and goes on, so that a user would read of an unknown algorithm only.  Nothing is
raised here: what is wrong is kept, and told where SGLang asks for the algorithm.
"""

from __future__ import annotations

import logging
from typing import Any

from specplug_sglang import seams
from specplug_sglang.asked import ALGORITHM


def register() -> None:
    """Make SGLang ready for specplug.  Cheap, idempotent, and without effect until a server asks for specplug."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(ALGORITHM) is not None:
        return
    _log_as_sglang_does()
    gone = seams.moved("algorithm")
    options: dict[str, Any] = {"supports_overlap": True}
    if gone:
        options["validate_server_args"] = _refusing
    else:
        from specplug_sglang import hooks
        from specplug_sglang.algorithm import Algorithm

        options["spec_class"] = Algorithm
        hooks.install()
    SpeculativeAlgorithm.register(ALGORITHM, **options)(_worker)


def _refusing(server_args: Any) -> None:
    """Say what is wrong with this SGLang, to a server that asks for specplug."""
    seams.require("algorithm")


def _worker(server_args: Any) -> type:
    """Return the class of the worker that drafts and verifies."""
    from specplug_sglang.worker import Worker

    return Worker


def _log_as_sglang_does() -> None:
    """Let what specplug logs look like, and go where, SGLang's own log does, however that is configured later on."""
    logging.getLogger("specplug").parent = logging.getLogger("sglang")
