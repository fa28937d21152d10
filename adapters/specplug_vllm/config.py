"""Who drafts on a vLLM server, by which settings, and on which runner and ranks, derived from its `VllmConfig`.

Every process derives them from `VllmConfig` alone, so all processes agree.

A server enables specplug in one of three ways.  If ``--speculative-config`` names specplug's class, specplug drafts.
If it names another method, vLLM's own drafter drafts, and a section of settings in ``--additional-config``, which may
be empty, lets specplug plan how far; if the section's proposer is `hybrid`, lookup continues the drafter's drafts.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Literal

from specplug.errors import EngineError, SettingsError
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER, HYBRID
from specplug.settings.sources import CONFIG_VARIABLE, ResolvedSettings, after_engine, load_settings
from specplug_vllm import seams

METHOD = "custom_class"
PROPOSER = "specplug_vllm.Proposer"
SECTION = "specplug"
FLAG = "--additional-config"
SPECULATIVE = "--speculative-config"
_LOSSLESS_METHODS = ("standard", "block")

Runner = Literal["v1", "v2"]


def is_requested(vllm_config: Any) -> bool:
    """Return whether this server enables specplug, to draft or to plan the drafts of vLLM's own drafter."""
    return has_proposers(vllm_config) or engine_method(vllm_config) is not None


def has_proposers(vllm_config: Any) -> bool:
    """Return whether specplug's proposers draft on this server, alone or after vLLM's own drafter."""
    return _replaces(vllm_config) or extended_method(vllm_config) is not None


def engine_method(vllm_config: Any) -> str | None:
    """Return the method of vLLM's own drafter if specplug does nothing but plan its drafts, otherwise None."""
    return None if extended_method(vllm_config) else _method(vllm_config)


def extended_method(vllm_config: Any) -> str | None:
    """Return the method of vLLM's own drafter if specplug's lookup continues its drafts, otherwise None."""
    method = _method(vllm_config)
    return method if method and section_of(vllm_config.additional_config).get("proposer") == HYBRID else None


def _replaces(vllm_config: Any) -> bool:
    """Return whether specplug drafts in place of a drafter of vLLM's."""
    spec = getattr(vllm_config, "speculative_config", None)
    return spec is not None and spec.method == METHOD and spec.model == PROPOSER


def _has_section(vllm_config: Any) -> bool:
    settings = getattr(vllm_config, "additional_config", None)
    return isinstance(settings, dict) and SECTION in settings


def _method(vllm_config: Any) -> str | None:
    """Return the method of vLLM's own drafter if there is one, with a section of settings."""
    spec = getattr(vllm_config, "speculative_config", None)
    if spec is None or _replaces(vllm_config) or not _has_section(vllm_config):
        return None
    return str(spec.method)


def lossy_method(vllm_config: Any) -> str:
    """Return the option by which vLLM's own verification is lossy, such as "fly" or "synthetic"; "" if it is not."""
    method = vllm_config.speculative_config.rejection_sample_method
    return "" if method in _LOSSLESS_METHODS else f'"rejection_sample_method": "{method}"'


def resolve_settings(vllm_config: Any) -> ResolvedSettings | None:
    """Return the server's settings, or None if it does not enable specplug.

    The maximum draft length is vLLM's own ``num_speculative_tokens``.  The proposer is a lookup's if that continues
    the drafts of vLLM's own drafter.

    Raises:
        SettingsError: the settings are invalid, or their ``num_speculative_tokens`` differs from vLLM's.
    """
    return _loaded(vllm_config)[0] if is_requested(vllm_config) else None


def engine_tokens(vllm_config: Any) -> int:
    """Return how many tokens vLLM's own drafter drafts before specplug's lookup does; 0 if it does not."""
    return _loaded(vllm_config)[1] if extended_method(vllm_config) else 0


def _loaded(vllm_config: Any) -> tuple[ResolvedSettings, int]:
    """Return the settings of a server that enables specplug, and `engine_tokens`."""
    draft_length = vllm_config.speculative_config.num_speculative_tokens
    section = json.dumps(section_of(vllm_config.additional_config), sort_keys=True)
    implied = _replaces(vllm_config) and _has_section(vllm_config)
    return _load(section, draft_length, implied, _method(vllm_config), os.environ.get(CONFIG_VARIABLE, ""))


def require_settings(vllm_config: Any) -> ResolvedSettings:
    """Return the settings of a server that enables specplug.

    Raises:
        EngineError: it does not.
        SettingsError: see `resolve_settings`.
    """
    settings = resolve_settings(vllm_config)
    if settings is None:
        raise EngineError.build("specplug is not enabled on this server", who="specplug_vllm")
    return settings


def runner_of(vllm_config: Any) -> Runner:
    """Return which of vLLM's model runners the server uses."""
    return "v2" if vllm_config.use_v2_model_runner else "v1"


def cuts_on_device(vllm_config: Any) -> bool:
    """Return whether the engine shortens drafts on the device before it verifies them; see `startup.adaptive`."""
    return runner_of(vllm_config) == "v2" and bool(vllm_config.speculative_config.enable_adaptive_verification)


def has_lockstep_ranks(vllm_config: Any) -> bool:
    """Return whether data-parallel ranks run every step together; those of a dense model are engines of their own."""
    return vllm_config.parallel_config.data_parallel_size > 1 and bool(vllm_config.model_config.is_moe)


def each_rank_drafts(vllm_config: Any) -> bool:
    """Return whether each of several tensor-parallel ranks drafts for itself."""
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return ranks > 1 and require_settings(vllm_config).settings.draft_ranks == "each"


def may_skip_drafts(vllm_config: Any) -> bool:
    """Return whether one of the ranks that step together may plan a step without drafts.

    Nothing of specplug's proposers is common to these ranks.  A drafter of vLLM's may run forward passes of all ranks,
    so they have to agree.
    """
    if runner_of(vllm_config) == "v1" or cuts_on_device(vllm_config):
        return False
    return has_proposers(vllm_config) or seams.ranks_agree_to_skip_drafts()


def section_of(additional_config: Any) -> dict[str, Any]:
    """Return specplug's section of ``--additional-config``; empty if there is none.

    Raises:
        SettingsError: it is no JSON object.
    """
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, dict) else {}
    if not isinstance(section, dict):
        raise SettingsError.build(
            "malformed settings", who=f"{FLAG} {SECTION!r}", found=repr(section), expected="a JSON object"
        )
    return section


@functools.lru_cache(maxsize=16)
def _load(
    section: str, draft_length: int, implied: bool, method: str | None, _environment: str
) -> tuple[ResolvedSettings, int]:
    """Return the settings, and the tokens of vLLM's own drafter if a lookup continues them.

    If vLLM's speculative configuration may be `implied` by the section, a draft length as in the settings is theirs.
    """
    flags = json.loads(section)
    key = "num_speculative_tokens"
    own = {"proposer": SPECULATIVE} if method is not None and "proposer" not in flags else {}
    if method is not None and flags.setdefault("proposer", ENGINE_DRAFTER) not in (ENGINE_DRAFTER, HYBRID):
        raise SettingsError.build(
            "vLLM's own drafter drafts on this server",
            who=f"{FLAG} {SECTION!r}",
            found=f"proposer {flags['proposer']!r}, and method {method!r} in {SPECULATIVE}",
            expected=f"no proposer, {ENGINE_DRAFTER!r}, or {HYBRID!r}, whose lookup continues its drafts",
            remedy=f"For specplug's proposers leave the method out of {SPECULATIVE}",
        )
    if method is not None and flags["proposer"] == HYBRID:
        flags = _with_engines_model(flags, method)
    if flags.get(key, draft_length) != draft_length:
        raise SettingsError.build(
            f"{key!r} is given twice",
            who=f"{FLAG} {SECTION!r}",
            found=flags[key],
            expected=f"{draft_length}, as in {SPECULATIVE}",
            remedy=f"Leave it out of {FLAG}; a policy's own draft length is one of that policy's options",
        )
    registry = default_registry()
    load = functools.partial(
        load_settings, flags_origin=f"{FLAG} {SECTION!r}", registry=registry, engine_drafts=method is not None
    )
    if key not in flags and not (implied and load(flags).settings.num_speculative_tokens == draft_length):
        own[key] = SPECULATIVE
        flags[key] = draft_length
    settings = load(flags, origins_of=own)
    extends = method is not None and settings.settings.extends_engine
    return after_engine(settings, registry) if extends else (settings, 0)


def _with_engines_model(flags: dict[str, Any], method: str) -> dict[str, Any]:
    """Return settings whose `hybrid` has vLLM's own drafter as its model; malformed options are left as they are.

    Raises:
        SettingsError: they name another model, which would draft beside it.
    """
    options = flags.get("options", {})
    of_hybrid = options.get(HYBRID, {}) if isinstance(options, dict) else None
    if not isinstance(of_hybrid, dict):
        return flags
    model = of_hybrid.get("model", ENGINE_DRAFTER)
    if model != ENGINE_DRAFTER:
        raise SettingsError.build(
            "vLLM's own drafter is the model on this server",
            who=f"{FLAG} {SECTION!r}",
            found=f"options.{HYBRID}.model {model!r}, and method {method!r} in {SPECULATIVE}",
            expected=f"no model, or {ENGINE_DRAFTER!r}",
            remedy=f"For specplug's own draft models leave the method out of {SPECULATIVE}",
        )
    return {**flags, "options": {**options, HYBRID: {**of_hybrid, "model": model}}}
