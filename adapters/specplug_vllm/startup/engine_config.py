"""Patches of vLLM's configuration, so that specplug runs on V2, with async scheduling and its own scheduler.

Unmodified vLLM sends ``custom_class`` to the V1 runner and turns async scheduling off for it.  Configurations that do
not name specplug are unchanged.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from specplug.errors import EngineError, SpecplugError
from specplug.operator import startup
from specplug_vllm import seams
from specplug_vllm.config import METHOD, is_requested, proposes, refuse_unsupported, resolved, runner_of
from specplug_vllm.startup import adaptive, advice, graphs, recurrent

SCHEDULERS = {
    (True, False): "specplug_vllm.scheduler.scheduler.SpecplugScheduler",
    (True, True): "specplug_vllm.scheduler.scheduler.SpecplugAsyncScheduler",
    (False, False): "specplug_vllm.scheduler.engine_drafts.EngineDraftsScheduler",
    (False, True): "specplug_vllm.scheduler.engine_drafts.EngineDraftsAsyncScheduler",
}
"""specplug's schedulers, by whether its proposers draft and whether scheduling is asynchronous."""


def install() -> None:
    """Patch `VllmConfig`, once per process."""
    from vllm.config import vllm as module

    cls = module.VllmConfig
    if not hasattr(cls.__post_init__, "_specplug"):
        cls.__post_init__ = _with_specplug(cls.__post_init__, module)
        unsupported = cls._get_v2_model_runner_unsupported_features
        cls._get_v2_model_runner_unsupported_features = _supporting_specplug(unsupported)
        adaptive.install_checks(cls)
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


def _supporting_specplug(original: Callable[[Any], list[str]]) -> Callable[[Any], list[str]]:
    """Remove specplug's method from the list of features that V2 does not support."""

    @functools.wraps(original)
    def unsupported_features(self: Any) -> list[str]:
        features = original(self)
        return [feature for feature in features if METHOD not in feature] if proposes(self) else features

    return unsupported_features


def _with_specplug(original: Callable[..., None], module: Any) -> Callable[..., None]:
    """Check the settings first, and set specplug's scheduler after vLLM's own decisions."""

    @functools.wraps(original)
    def post_init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not is_requested(self):
            original(self, *args, **kwargs)
            return
        _check(self)
        graphs.require_lengths_on_v1(self)
        with _async_allowed(module, proposes(self) and runner_of(self) == "v2"):
            original(self, *args, **kwargs)
        scheduler = self.scheduler_config
        if scheduler.scheduler_cls is None or scheduler.scheduler_cls in SCHEDULERS.values():
            scheduler.scheduler_cls = SCHEDULERS[proposes(self), bool(scheduler.async_scheduling)]
        advice.announce(self)

    post_init._specplug = True  # type: ignore[attr-defined]
    return post_init


def _check(vllm_config: Any) -> None:
    """Refuse invalid settings and unsupported configurations before the weights are loaded.

    Raises:
        SpecplugError: the settings are invalid, or the configuration is not supported.
    """
    try:
        seams.require("config")
        resolved(vllm_config)
        refuse_unsupported(vllm_config)
        recurrent.refuse_unsupported(vllm_config)
    except SpecplugError:
        startup.show_message_only()
        raise


@contextmanager
def _async_allowed(module: Any, wanted: bool) -> Iterator[None]:
    """Add the method to vLLM's list of methods that keep async scheduling, while one configuration is built.

    From 0.33 on vLLM reads the list for V1 only, and may remove it.
    """
    types = getattr(module, "NgramGPUTypes", None)
    if types is None or not wanted:
        yield
        return
    module.NgramGPUTypes = Literal[(*get_args(types), METHOD)]
    try:
        yield
    finally:
        module.NgramGPUTypes = types
