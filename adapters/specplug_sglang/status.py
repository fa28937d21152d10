"""Status and control: both sides, in the processes that serve requests and in schedulers, by SGLang's own messages.

The hook on `get_internal_state` adds the status to its result, under the key "specplug"; the request of
`set_internal_state` carries an operator's order, which reaches all ranks in the same step.  Such requests hold numbers
only, so the mode is encoded as one.  `read` and `set_mode` are for offline use with an `Engine`; the HTTP routes await
`ask` and `order`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from specplug.errors import EngineError, SettingsError, SpecplugError, describe
from specplug.operator.control import parse_order
from specplug.operator.status import engine_status, worker_status
from specplug_sglang import seams
from specplug_sglang.config import lossy_arguments
from specplug_sglang.verification import acceptance

logger = logging.getLogger("specplug")

KEY = "specplug"
"""Key of the status in a scheduler's internal state."""

MODE = "specplug_mode"
LIMIT = "specplug_num_speculative_tokens"
"""Keys of an order in `set_internal_state`.  Mode: 1 is on, 0 is off; limit: -1 is no limit."""

_MODES = ("off", "on")
_NO_LIMIT = -1


def scheduler_status(scheduler: Any) -> dict[str, Any]:
    """Return the status of a scheduler and its worker: settings, plan, control, counts and faults, as plain data.

    Counts are read back from the device; on a GPU this waits for the queued steps.  With SGLang's own drafter the
    scheduler counts the results of drafts, and the worker has no status.
    """
    from sglang.srt.runtime_context import get_parallel, get_spec

    drafting = scheduler.draft_worker.drafting
    worker = {"rank": drafting.rank, "drafts": drafting.stage is not None}
    drafter = {}
    if drafting.outcomes is not None or drafting.stage is not None:
        counts = replace(drafting.counts(), lossy=acceptance.counter.read())
        if drafting.stage is not None:
            settings = drafting.resolved.settings
            worker |= worker_status(settings, drafting.device, drafting.allocator, drafting.stage, counts)
        else:
            drafter = {"engine_drafter": drafting.method, "metrics": counts.as_dict()}
    lossy = lossy_arguments(get_spec())
    return {
        "engine": int(get_parallel().dp_rank or 0),
        "overlap": bool(scheduler.enable_overlap),
        "trees": drafting.caps.trees,
        **engine_status(drafting.caps, drafting.step_planner, drafting.start_costs, lossy, drafter),
        "workers": [] if drafter else [worker],
    }


def report_state(original: Any, controller: Any, request: Any) -> Any:
    """Wrap `get_internal_state` and add the status to its result.

    An exception here would end the scheduler, and with it the server, so it is reported in the status instead.
    """
    answer = original(controller, request)
    if _drafts(controller.scheduler):
        try:
            status = scheduler_status(controller.scheduler)
        except Exception as error:
            logger.exception("specplug cannot report its status")
            status = {"error": describe(error)}
        answer.internal_state[KEY] = status
    return answer


def set_state(original: Any, controller: Any, request: Any) -> Any:
    """Wrap `set_internal_state` and apply an operator's order; an invalid order changes nothing."""
    from sglang.srt.managers.io_struct import SetInternalStateReq, SetInternalStateReqOutput

    mine = {key: value for key, value in request.server_args.items() if key in (MODE, LIMIT)}
    if not mine or not _drafts(controller.scheduler):
        return original(controller, request)
    others = {key: value for key, value in request.server_args.items() if key not in mine}
    try:
        order = order_of(mine)
    except SettingsError as error:
        logger.warning("%s", error)
        return SetInternalStateReqOutput(updated=False)
    if others:
        answer = original(controller, SetInternalStateReq(server_args=others))
        if not answer.updated:
            return answer
    controller.scheduler.draft_worker.drafting.step_planner.control.set(**order)
    return SetInternalStateReqOutput(updated=True)


def numbers_of(order: dict[str, Any]) -> dict[str, int]:
    """Return a validated order encoded as numbers."""
    numbers = {}
    if order.get("mode") is not None:
        numbers[MODE] = _MODES.index(order["mode"])
    if "num_speculative_tokens" in order:
        limit = order["num_speculative_tokens"]
        numbers[LIMIT] = _NO_LIMIT if limit is None else limit
    return numbers


def order_of(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the order that the numbers encode; raise SettingsError if they encode no valid one."""
    order: dict[str, Any] = {}
    if MODE in numbers:
        order["mode"] = dict(enumerate(_MODES)).get(numbers[MODE], numbers[MODE])
    if LIMIT in numbers:
        order["num_speculative_tokens"] = None if numbers[LIMIT] == _NO_LIMIT else numbers[LIMIT]
    return parse_order(order, "/set_internal_state").model_dump(exclude_unset=True)


def _drafts(scheduler: Any) -> bool:
    """Return whether specplug drafts for this scheduler and the seams of the status are available."""
    return hasattr(scheduler.draft_worker, "drafting") and seams.available("status")


# -- in the processes that serve requests ---------------------------------------------------------------------------


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

    Keys are `mode`, "on" or "off", and `num_speculative_tokens`, None for no limit.  Omitted ones stay unchanged.

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
