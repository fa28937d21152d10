"""Hooks on SGLang's own routes for external corpora, which serve its n-gram: they name specplug's routes instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from specplug_sglang.config import proposes

MESSAGE = (
    "these routes serve SGLang's own n-gram; specplug lists, adds and removes corpora at /specplug/corpora, "
    "in the store that corpora.store names"
)

_FRONT = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
_ANSWERS = {
    "add_external_corpus": "AddExternalCorpusReqOutput",
    "remove_external_corpus": "RemoveExternalCorpusReqOutput",
    "list_external_corpora": "ListExternalCorporaReqOutput",
}
"""Methods that the routes call, and the types of their answers."""


def install() -> None:
    """Hook the methods."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, answer in _ANSWERS.items():
        HookRegistry.register(f"{_FRONT}.{name}", partial(_refuse, answer), HookType.AROUND)


async def _refuse(answer: str, original: Callable[..., Any], manager: Any, *args: Any) -> Any:
    if not proposes(manager.server_args):
        return await original(manager, *args)
    from sglang.srt.managers import io_struct

    return getattr(io_struct, answer)(success=False, message=MESSAGE)
