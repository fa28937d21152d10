"""The table of SGLang's functions that specplug hooks at the start of each process, by their names in SGLang.

Each hook reads the server's arguments and changes nothing on servers without specplug.  `frontend.intake` hooks the
processes that accept requests once one is launched.
"""

from __future__ import annotations

from functools import partial

from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from specplug_sglang import arguments, status
from specplug_sglang.config import HANDLES_ARGUMENTS
from specplug_sglang.frontend import guards, http, intake
from specplug_sglang.scheduler import endings, events

_REQUEST = "sglang.srt.managers.schedule_batch.Req"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_STATE = "sglang.srt.managers.scheduler_components.internal_state.SchedulerInternalStateController"
_MEMORY = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_WEIGHTS = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"

BEFORE = {
    HANDLES_ARGUMENTS: arguments.complete_arguments,
    f"{_SCHEDULER}.on_idle": events.notify,
    f"{_MEMORY}.release_memory_occupation": events.notify_release,
}
AFTER = {
    HANDLES_ARGUMENTS: arguments.check_arguments,
    "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker": events.choose_worker,
    f"{_SCHEDULER}.maybe_init_draft_worker": events.attach_worker,
    f"{_MEMORY}.resume_memory_occupation": events.notify_resume,
    f"{_FRONT}.init_communicators": http.prepare_front,
    "sglang.srt.utils.common.add_prometheus_middleware": http.export_metrics,
}
AROUND = {
    f"{_REQUEST}.update_finish_state": endings.find_end,
    f"{_REQUEST}.update_spec_correct_drafts_histogram": endings.note_accepted,
    "sglang.srt.session.session_controller.Session._concat_token_arrays": endings.continue_session,
    f"{_WEIGHTS}.update_weights_from_disk": events.change_weights,
    f"{_WEIGHTS}.update_weights_from_tensor": events.change_weights,
    f"{_WEIGHTS}.update_weights_from_ipc": events.change_weights,
    f"{_WEIGHTS}.load_weights_from_distributed": events.change_weights,
    f"{_WEIGHTS}.end_weight_update": events.end_update,
    f"{_STATE}.get_internal_state": status.report_state,
    f"{_STATE}.set_internal_state": status.set_state,
    f"{_FRONT}.get_internal_state": guards.show_states,
    f"{_FRONT}.set_internal_state": guards.order_state,
    f"{_FRONT}.add_external_corpus": partial(http.refuse_corpora, "AddExternalCorpusReqOutput"),
    f"{_FRONT}.remove_external_corpus": partial(http.refuse_corpora, "RemoveExternalCorpusReqOutput"),
    f"{_FRONT}.list_external_corpora": partial(http.refuse_corpora, "ListExternalCorporaReqOutput"),
}


def install() -> None:
    """Register all hooks with SGLang."""
    intake.install()
    for kind, hooks in ((HookType.BEFORE, BEFORE), (HookType.AFTER, AFTER), (HookType.AROUND, AROUND)):
        for target, function in hooks.items():
            HookRegistry.register(target, function, kind)
