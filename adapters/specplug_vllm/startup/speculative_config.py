"""The speculative configuration that specplug's section of ``--additional-config`` implies.

vLLM wants a method, a model and a draft length in ``--speculative-config``.  Where it names no method, the section
alone turns speculation on, and they follow from the settings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER
from specplug.settings.sources import load_settings
from specplug_vllm.config import FLAG, METHOD, PROPOSER, SECTION, section_of

_LENGTH = "num_speculative_tokens"


def install() -> None:
    """Wrap `EngineArgs.create_engine_config`, once per process."""
    from vllm.engine.arg_utils import EngineArgs

    if not hasattr(EngineArgs.create_engine_config, "_specplug"):
        EngineArgs.create_engine_config = _completed(EngineArgs.create_engine_config)


def _completed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.speculative_config = implied(self.speculative_config, self.additional_config)
        return original(self, *args, **kwargs)

    create_engine_config._specplug = True  # type: ignore[attr-defined]
    return create_engine_config


def implied(given: dict[str, Any] | None, additional_config: Any) -> dict[str, Any] | None:
    """Return the speculative configuration of a launch that gives this one, or none.

    It is `given` itself where that names a method or another model, where there is no section, and where the section
    names vLLM's own drafter.

    Raises:
        SettingsError: the section is invalid.
    """
    section, named = section_of(additional_config), given or {}
    has_section = isinstance(additional_config, dict) and SECTION in additional_config
    if not has_section or section.get("proposer") == ENGINE_DRAFTER:
        return given
    if named.get("method") not in (None, METHOD) or named.get("model") not in (None, PROPOSER):
        return given
    found = {**named, "method": METHOD, "model": PROPOSER}
    if _LENGTH not in named:
        settings = load_settings(section, flags_origin=f"{FLAG} {SECTION!r}", registry=default_registry())
        found[_LENGTH] = settings.settings.num_speculative_tokens
    return found
