"""Client side of status and control, for the processes that serve requests.

`read` and `set_mode` are for offline use with an `Engine`; the HTTP routes await `ask` and `order`.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from specplug.errors import EngineError, SpecplugError
from specplug.operator.control import parse_order
from specplug_sglang.scheduler.status import KEY, numbers_of


async def ask(manager: Any) -> list[dict[str, Any]]:
    """Return the status of each engine that a `TokenizerManager` serves, by data-parallel rank.

    Raises:
        EngineError: an engine does not draft with specplug, or failed to report its status.
    """
    statuses = [state.get(KEY, {"error": "specplug does not draft"}) for state in await manager.get_internal_state()]
    for status in statuses:
        if "error" in status:
            raise _error("an engine did not report its status", status["error"])
    return sorted(statuses, key=lambda status: int(status["engine"]))


async def order(manager: Any, requested: dict[str, Any]) -> list[dict[str, Any]]:
    """Send an operator's validated order to all engines and return each one's resulting state.

    Raises:
        EngineError: an engine rejected the order.
    """
    from sglang.srt.managers.io_struct import SetInternalStateReq

    taken = await manager.set_internal_state(SetInternalStateReq(server_args=numbers_of(requested)))
    if not all(taken):
        raise _error("an engine rejected the order", requested)
    return [status["scheduler"]["control"] for status in await ask(manager)]


def read(engine: Any) -> list[dict[str, Any]]:
    """Return the status of an `Engine`: one dict per data-parallel rank, as in ``GET /specplug/status``.

    Not for use within a running event loop: there, await ``ask(engine.tokenizer_manager)``.

    Raises:
        EngineError: the engine does not draft with specplug.
    """
    statuses: list[dict[str, Any]] = engine.loop.run_until_complete(ask(engine.tokenizer_manager))
    return statuses


def set_mode(engine: Any, **requested: Any) -> list[dict[str, Any]]:
    """Switch an `Engine`'s speculation off or on, or limit its drafts; return the state of each data-parallel rank.

    Args:
        engine: SGLang's.
        requested: `mode`, "on" or "off"; `num_speculative_tokens`, None for no limit.  Omitted keys stay unchanged.

    Raises:
        SettingsError: the order is invalid; nothing has changed.
        EngineError: the engine does not draft with specplug.
    """
    checked = parse_order(requested, "set_mode").model_dump(exclude_unset=True)
    state: list[dict[str, Any]] = engine.loop.run_until_complete(order(engine.tokenizer_manager, checked))
    return state


def versions() -> dict[str, str]:
    """Return the versions of specplug and SGLang."""
    import sglang

    return {"specplug": version("specplug"), "sglang": str(sglang.__version__)}


def _error(what: str, found: Any) -> SpecplugError:
    return EngineError.build(what, who="specplug_sglang", found=found)
