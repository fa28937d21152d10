"""Server arguments of a server whose drafts SGLang's own draft model makes, and which of them specplug refuses."""

from __future__ import annotations

from typing import Any

from sglang.srt.environ import envs

from specplug.errors import SpecplugError
from specplug.operator import startup
from specplug.settings.sources import CONFIG_VARIABLE
from specplug_sglang import seams
from specplug_sglang.config import HANDLES_ARGUMENTS, decided, engine_method, resolved
from specplug_sglang.startup.refused import REFUSED, refusal, refuse_arguments

METHODS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Algorithms whose workers build a runtime state per draft length; SGLang resolves NEXTN to EAGLE."""

OFF = f"take the proposer 'engine' out of {CONFIG_VARIABLE}, which leaves the drafter to SGLang"

_REFUSED: dict[str, Any] = {
    **REFUSED,
    "speculative_eagle_topk": 1,
    "enable_multi_layer_eagle": False,
    "enable_lora": False,
}

_SKIPS = "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND"


def install() -> None:
    """Hook SGLang's resolution of an algorithm's arguments; other servers are unchanged."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HANDLES_ARGUMENTS, handled, HookType.AFTER)


def handled(result: None, algorithm: Any, server_args: Any) -> None:
    """Check the arguments that SGLang has resolved for its algorithm.

    Raises:
        ValueError: the settings are invalid, or specplug does not support the server's configuration.
    """
    try:
        if engine_method(server_args) is None:
            return
        for where in ("worker", "engine drafts"):  # a moved seam would end the scheduler a moment later
            seams.require(where)
        refuse_unsupported(decided(server_args))
        resolved(server_args)
    except SpecplugError as error:
        startup.show_message_only()
        raise ValueError(str(error)) from error


def refuse_unsupported(server_args: Any) -> None:
    """Refuse arguments with which specplug cannot change the draft length, or which make the text inexact.

    Raises:
        EngineError: specplug does not support the server's configuration.
    """
    algorithm = server_args.speculative_algorithm
    if algorithm not in METHODS:
        found, expected = f"--speculative-algorithm {algorithm}", ", ".join(METHODS)
        raise refusal("the draft length of this algorithm cannot be planned", found, expected, OFF)
    refuse_arguments(server_args, _REFUSED, OFF)
    if envs.SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND.get():
        what = "the draft model would not see the tokens of steps without drafts, and later drafts would be wrong"
        raise refusal(what, f"{_SKIPS}=1", f"{_SKIPS} unset", OFF)
