"""The status of a scheduler and its worker, and operators' orders, carried by SGLang's own messages.

The answer to SGLang's request for a scheduler's internal state gains the status, under the key "specplug"; its request
to set that state carries an operator's order, which reaches all ranks in the same step.  Such orders hold numbers only,
so the mode travels as one.  `specplug_sglang.status` is the other end.
"""

from __future__ import annotations

import logging
from typing import Any

from specplug.errors import SettingsError
from specplug.operator.control import parse_order
from specplug.operator.status import by_plugin, reported_details, reported_settings
from specplug_sglang import seams

logger = logging.getLogger("specplug")

KEY = "specplug"
"""Where the status stands among what a scheduler tells of its state."""

MODE, LIMIT = "specplug_mode", "specplug_num_speculative_tokens"
"""Keys of an order among those that set a scheduler's state: 1 is on, 0 is off; -1 is no limit."""

_MODES = {"off": 0, "on": 1}
_NO_LIMIT = -1
_CONTROLLER = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"


def install() -> None:
    """Hook into the schedulers of this process; they tell and take nothing more where specplug does not draft."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_CONTROLLER}.get_internal_state", state_reported, HookType.AROUND)
    HookRegistry.register(f"{_CONTROLLER}.set_internal_state", state_set, HookType.AROUND)


def scheduler_status(scheduler: Any) -> dict[str, Any]:
    """Return what a scheduler and its worker do: settings, plan, control, counts and faults, as plain data.

    Running steps are not waited for: counts may lag a step behind (see `specplug_sglang.scheduler.counts`).
    """
    drafting = scheduler.draft_worker.drafting
    step_planner, caps = drafting.step_planner, drafting.caps
    return {
        "engine": _engine_of(),
        "overlap": bool(scheduler.enable_overlap),
        "trees": caps.trees,
        "max_draft_length": caps.max_draft_length,
        "captured_draft_lengths": list(caps.captured_draft_lengths),
        "settings": reported_settings(drafting.resolved),
        "scheduler": {
            "steps": step_planner.steps,
            "plan": {"draft_length": step_planner.plan.draft_length, "token_budget": step_planner.plan.token_budget},
            "control": step_planner.control.state(),
            "faults": by_plugin(step_planner.faults),
        },
        "workers": [worker_status(scheduler)],
    }


def worker_status(scheduler: Any) -> dict[str, Any]:
    """Return what this process's worker does: its rank, and where it drafts (rank 0 does) its counts and faults."""
    drafting = scheduler.draft_worker.drafting
    status: dict[str, Any] = {"rank": drafting.rank, "drafts": drafting.stage is not None}
    if drafting.stage is not None:
        settings = drafting.resolved.settings
        status |= {
            "device": str(drafting.device),
            "proposers": [settings.proposer, *settings.extra_proposers],
            "sources": list(drafting.stage.sources),
            "details": reported_details(drafting.stage.proposers),
            "metrics": drafting.counts.read().as_dict(),
        }
    return status


def control(scheduler: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out an operator's order (see `specplug.operator.control.Order`); return what holds now.

    Raises:
        SettingsError: the order is wrong; nothing has changed.
    """
    state: dict[str, Any] = scheduler.draft_worker.drafting.step_planner.control.set(**order)
    return state


def state_reported(original: Any, controller: Any, request: Any) -> Any:
    """Stand around `get_internal_state`, whose answer gains the status.

    An exception here would end the scheduler, and with it the server: it is told instead.
    """
    answer = original(controller, request)
    if _drafts(controller.scheduler):
        try:
            status = scheduler_status(controller.scheduler)
        except Exception as error:
            logger.exception("the status cannot be told")
            status = {"error": f"{type(error).__name__}: {error}"}
        answer.internal_state[KEY] = status
    return answer


def state_set(original: Any, controller: Any, request: Any) -> Any:
    """Stand around `set_internal_state`, which takes an operator's order, too; what is wrong changes nothing."""
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
    control(controller.scheduler, order)
    return SetInternalStateReqOutput(updated=True)


def numbers_of(order: dict[str, Any]) -> dict[str, int]:
    """Return an order, which has been checked, in numbers."""
    numbers = {}
    if order.get("mode") is not None:
        numbers[MODE] = _MODES[order["mode"]]
    if "num_speculative_tokens" in order:
        limit = order["num_speculative_tokens"]
        numbers[LIMIT] = _NO_LIMIT if limit is None else limit
    return numbers


def order_of(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the order that numbers stand for.

    Raises:
        SettingsError: they stand for none.
    """
    order: dict[str, Any] = {}
    if MODE in numbers:
        modes = {number: mode for mode, number in _MODES.items()}
        if numbers[MODE] not in modes:
            expected = "1 (on) or 0 (off)"
            raise SettingsError.build("no such mode", who=MODE, found=numbers[MODE], expected=expected)
        order["mode"] = modes[numbers[MODE]]
    if LIMIT in numbers:
        order["num_speculative_tokens"] = None if numbers[LIMIT] == _NO_LIMIT else numbers[LIMIT]
    return parse_order(order, "/set_internal_state").model_dump(exclude_unset=True)


def _drafts(scheduler: Any) -> bool:
    """Whether specplug drafts for this scheduler, and can be asked how."""
    return hasattr(scheduler.draft_worker, "drafting") and seams.available("status")


def _engine_of() -> int:
    """Return the data-parallel rank of this process."""
    from sglang.srt.runtime_context import get_parallel

    return int(get_parallel().dp_rank or 0)
