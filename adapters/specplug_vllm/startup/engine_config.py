"""Patches of vLLM's configuration, so that specplug runs on V2, with async scheduling and its own scheduler.

Unmodified vLLM sends ``custom_class`` to the V1 runner and turns async scheduling off for it.  It wants a method, a
model and a draft length in ``--speculative-config``; where that names no method, specplug's section of
``--additional-config`` alone turns speculation on, and they follow from the settings.  For programs that pass vLLM no
flags, as some trainers, the environment variable `ENABLE` stands for an empty section.  Configurations that do not ask
for specplug are unchanged.

With ``"enable_adaptive_verification": true`` in ``--speculative-config`` the V2 runner verifies fewer draft tokens than
were scheduled: it picks those with the highest confidences on the device, without a host sync.  vLLM supports this for
DSpark only, and derives the number of tokens from measured costs; here it works for every proposer, and the plan's
`token_budget` sets the number.  vLLM's own checks are kept: a backend that plans from query lengths on the host would
silently serve wrong text.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Literal, get_args

from specplug.errors import EngineError, SettingsError
from specplug.operator import startup
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER
from specplug.seams.seam import hook
from specplug.settings.sources import load_settings
from specplug_vllm import seams
from specplug_vllm.config import (
    FLAG,
    METHOD,
    PROPOSER,
    SECTION,
    has_proposers,
    has_section,
    require_settings,
    runner_of,
    section_of,
    use_of,
)
from specplug_vllm.startup import advice, graphs, recurrent, refusals

ADAPTIVE = "enable_adaptive_verification"
ENABLE = "SPECPLUG_ENABLE"

SCHEDULERS = (
    "specplug_vllm.scheduler.scheduler.SpecplugScheduler",
    "specplug_vllm.scheduler.scheduler.SpecplugAsyncScheduler",
)
"""specplug's schedulers, by whether scheduling is asynchronous."""


def install() -> None:
    """Patch `VllmConfig` and `EngineArgs`, once per process."""
    from vllm.config import vllm as module
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.abstract import Executor

    hook(EngineArgs, "create_engine_config", _create_engine_config)
    hook(Executor, "__init__", _init_executor)
    cls = module.VllmConfig
    hook(cls, "__post_init__", _post_init)
    hook(cls, "_get_v2_model_runner_unsupported_features", _unsupported_features)
    hook(cls, "_validate_adaptive_verification", _validate_adaptive_verification)
    graphs.install(cls)


def require_installed() -> None:
    """Refuse a server that names specplug if vLLM has not loaded the plug-in: it would draft without plans.

    Raises:
        EngineError: the seams of vLLM's configuration have moved, or vLLM was kept from loading specplug.
    """
    from vllm.config.vllm import VllmConfig

    if not hasattr(VllmConfig.__post_init__, "_specplug"):
        seams.require("config")
        raise EngineError.build(
            "vLLM has not loaded specplug, which --speculative-config names",
            who="specplug_vllm",
            found=f"VLLM_PLUGINS={os.environ.get('VLLM_PLUGINS')!r}",
            expected="'specplug' in it, or no such variable",
            remedy="Add 'specplug' to it, or unset it; if it is not set, reinstall specplug in vLLM's environment",
        )


def _unsupported_features(original: Callable[[Any], list[str]], config: Any) -> list[str]:
    """Remove specplug's method from the list of features that V2 does not support."""
    features = original(config)
    return [feature for feature in features if METHOD not in feature] if has_proposers(config) else features


def _post_init(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    """Check the settings first, and set specplug's scheduler after vLLM's own decisions."""
    if not use_of(config):
        original(config, *args, **kwargs)
        return
    _check(config)
    graphs.require_lengths_on_v1(config)
    if use_of(config) == "hybrid" and runner_of(config) == "v1":
        _schedule_synchronously(config)
    with _async_allowed(has_proposers(config) and runner_of(config) == "v2"):
        original(config, *args, **kwargs)
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is None or scheduler.scheduler_cls in SCHEDULERS:
        scheduler.scheduler_cls = SCHEDULERS[bool(scheduler.async_scheduling)]
    advice.announce(config)


def _check(vllm_config: Any) -> None:
    """Refuse invalid settings and unsupported configurations before the weights are loaded.

    Raises:
        SpecplugError: the settings are invalid, or the configuration is not supported.
    """
    seams.require("config")
    found = require_settings(vllm_config)
    refusals.refuse_unsupported(vllm_config)
    recurrent.refuse_unsupported(vllm_config)
    startup.require_startable(found.settings, vllm_config.device_config.device_type)
    refusals.refuse_processors(vllm_config)


def _schedule_synchronously(vllm_config: Any) -> None:
    """Turn async scheduling off: V1 would keep the drafts on the device, where lookup cannot continue them."""
    if vllm_config.scheduler_config.async_scheduling:
        raise EngineError.build(
            "V1 does not schedule asynchronously if lookup continues the drafts of vLLM's own drafter",
            who="specplug_vllm",
            found="--async-scheduling",
            expected="no such flag",
            remedy="Leave it out, or use the V2 runner",
        )
    vllm_config.scheduler_config.async_scheduling = False


@contextmanager
def _async_allowed(wanted: bool) -> Iterator[None]:
    """Add the method to vLLM's list of methods that keep async scheduling, while one configuration is built.

    From 0.33 on vLLM reads the list for V1 only, and may remove it.
    """
    from vllm.config import vllm as module

    types = getattr(module, "NgramGPUTypes", None)
    if types is None or not wanted:
        yield
        return
    module.NgramGPUTypes = Literal[(*get_args(types), METHOD)]
    try:
        yield
    finally:
        module.NgramGPUTypes = types


_LENGTH = "num_speculative_tokens"


def _create_engine_config(original: Callable[..., Any], arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """Turn speculation on where only the section does; the process is a server's first, or an offline program's."""
    with startup.message_only():
        arguments.additional_config = add_section(arguments.additional_config, arguments.speculative_config)
        arguments.speculative_config = complete_spec(arguments.speculative_config, arguments.additional_config)
        config = original(arguments, *args, **kwargs)
    startup.expect_children(ours=bool(use_of(config)))
    return config


def _init_executor(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    with startup.told_by_parent():
        original(*args, **kwargs)


def add_section(additional_config: Any, speculative: dict[str, Any] | None) -> Any:
    """Return the additional configuration of a launch, with an empty section where the environment enables specplug.

    A launch with a speculative configuration, `speculative`, has decided itself who drafts.

    Raises:
        SettingsError: the environment variable is neither 0 nor 1.
    """
    wanted = os.environ.get(ENABLE, "")
    if wanted not in ("", "0", "1"):
        raise SettingsError.build("cannot tell whether to speculate", who=ENABLE, found=repr(wanted), expected="0 or 1")
    if wanted != "1" or speculative is not None or not isinstance(additional_config, dict):
        return additional_config
    return {SECTION: {}, **additional_config}


def complete_spec(speculative: dict[str, Any] | None, additional_config: Any) -> dict[str, Any] | None:
    """Return the speculative configuration of a launch that gives this one, or none.

    It is `speculative` itself where that names a method or another model, where there is no section, and where the
    section names vLLM's own drafter.

    Raises:
        SettingsError: the section is invalid.
    """
    section = section_of(additional_config)
    named = speculative or {}
    if not has_section(additional_config) or section.get("proposer") == ENGINE_DRAFTER:
        return speculative
    if named.get("method") not in (None, METHOD) or named.get("model") not in (None, PROPOSER):
        return speculative
    spec = {**named, "method": METHOD, "model": PROPOSER}
    if _LENGTH not in named:
        settings = load_settings(section, flags_origin=f"{FLAG} {SECTION!r}", registry=default_registry())
        spec[_LENGTH] = settings.settings.num_speculative_tokens
    return spec


def _validate_adaptive_verification(original: Callable[[Any], None], config: Any) -> None:
    """Allow servers with specplug to run without CUDA graphs, which vLLM requires to measure costs."""
    if has_proposers(config) and not has_any_graphs(config):
        mode = SimpleNamespace(has_full_cudagraphs=lambda: True)
        config = copy.copy(config)
        config.compilation_config = SimpleNamespace(cudagraph_mode=mode)
    original(config)


def has_any_graphs(vllm_config: Any) -> bool:
    """Return whether the engine captures CUDA graphs of any kind."""
    return bool(vllm_config.compilation_config.cudagraph_mode.value)
