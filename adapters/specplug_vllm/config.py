"""Who drafts on a vLLM server, by which settings, and the engine's capabilities, derived from its `VllmConfig`.

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
from specplug.interfaces import PluginContext
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import ENGINE_DRAFTER, HYBRID
from specplug.settings.sources import CONFIG_VARIABLE, ResolvedSettings, after_engine, load_settings
from specplug.types.caps import Distribution, DraftLengthChange, EngineCaps, Ragged
from specplug_vllm import seams

METHOD = "custom_class"
PROPOSER = "specplug_vllm.Proposer"
SECTION = "specplug"
FLAG = "--additional-config"
SPECULATIVE = "--speculative-config"
_LOSSLESS_METHODS = ("standard", "block")

Runner = Literal["v1", "v2"]

Use = Literal["", "proposers", "engine", "hybrid"]
"""Who drafts where specplug is enabled: its proposers; vLLM's own drafter, whose drafts it plans; or first that drafter
and then specplug's lookup, which continues its drafts.  "" if it is not enabled."""


def use_of(vllm_config: Any) -> Use:
    """Return how a server uses specplug."""
    spec = getattr(vllm_config, "speculative_config", None)
    if spec is None:
        return ""
    if spec.method == METHOD and spec.model == PROPOSER:
        return "proposers"
    if not has_section(vllm_config.additional_config):
        return ""
    return "hybrid" if section_of(vllm_config.additional_config).get("proposer") == HYBRID else "engine"


def has_proposers(vllm_config: Any) -> bool:
    """Return whether specplug's proposers draft on this server, alone or after vLLM's own drafter."""
    return use_of(vllm_config) in ("proposers", "hybrid")


def drafter_of(vllm_config: Any) -> str:
    """Return the method of vLLM's own drafter if specplug plans or continues its drafts, otherwise ""."""
    return str(vllm_config.speculative_config.method) if use_of(vllm_config) in ("engine", "hybrid") else ""


def has_section(additional_config: Any) -> bool:
    """Return whether ``--additional-config`` has specplug's section."""
    return isinstance(additional_config, dict) and SECTION in additional_config


def lossy_method(vllm_config: Any) -> str:
    """Return the option by which vLLM's own verification is lossy, such as "fly" or "synthetic"; "" if it is not."""
    method = vllm_config.speculative_config.rejection_sample_method
    return "" if method in _LOSSLESS_METHODS else f'"rejection_sample_method": "{method}"'


def require_settings(vllm_config: Any) -> ResolvedSettings:
    """Return the settings of a server that enables specplug.

    The maximum draft length is vLLM's own ``num_speculative_tokens``.  The proposer is a lookup's if that continues
    the drafts of vLLM's own drafter.

    Raises:
        EngineError: it does not enable specplug.
        SettingsError: the settings are invalid, or their ``num_speculative_tokens`` differs from vLLM's.
    """
    if not use_of(vllm_config):
        raise EngineError.build("specplug is not enabled on this server", who="specplug_vllm")
    return _loaded(vllm_config)[0]


def engine_tokens(vllm_config: Any) -> int:
    """Return how many tokens vLLM's own drafter drafts before specplug's lookup does; 0 if it does not."""
    return _loaded(vllm_config)[1] if use_of(vllm_config) == "hybrid" else 0


def _loaded(vllm_config: Any) -> tuple[ResolvedSettings, int]:
    draft_length = vllm_config.speculative_config.num_speculative_tokens
    section = json.dumps(section_of(vllm_config.additional_config), sort_keys=True)
    implied = use_of(vllm_config) == "proposers" and has_section(vllm_config.additional_config)
    return _load(section, draft_length, implied, drafter_of(vllm_config), os.environ.get(CONFIG_VARIABLE, ""))


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


def engine_caps(vllm_config: Any) -> EngineCaps:
    """Return the engine's capabilities under this configuration."""
    spec = vllm_config.speculative_config
    parallel = vllm_config.parallel_config
    v2 = runner_of(vllm_config) == "v2"
    cuts = cuts_on_device(vllm_config)
    if use_of(vllm_config) == "engine":  # nothing trims its drafts: rows are as long as the plan and its caps
        ragged = Ragged.PADDED if v2 else Ragged.COSTS_FULL_GRAPH
    else:
        ragged = Ragged.PADDED if v2 and not cuts else Ragged.NATIVE
    several_ranks = parallel.tensor_parallel_size > 1  # full distributions are not sent from rank to rank
    distribution = Distribution.LOGITS if v2 else Distribution.PROBS
    return EngineCaps(
        max_draft_length=spec.num_speculative_tokens,
        captured_draft_lengths=_ladder(vllm_config) if v2 and not cuts else (),
        ragged=ragged,
        draft_length_change=_draft_length_change(vllm_config, v2),
        # Confidences, and so the drafted tokens, decide which tokens are cut: only one-hot drafts stay lossless.
        draft_input=Distribution.ONE_HOT if several_ranks or cuts else distribution,
        tensor_parallel_size=parallel.tensor_parallel_size,
        verifies_budget=cuts,
        engine_tokens=engine_tokens(vllm_config),
    )


def plugin_context(vllm_config: Any, seed: int, **place: Any) -> PluginContext:
    """Return the context that plug-ins are built with; `place` is the device and the rank, where they matter.

    It has no tokenizer if the server runs without one.
    """
    model = vllm_config.model_config
    tokenizer = None
    if not model.skip_tokenizer_init:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
    return PluginContext(
        caps=engine_caps(vllm_config),
        vocab_size=model.get_vocab_size(),
        max_slots=vllm_config.scheduler_config.max_num_seqs,
        max_length=model.max_model_len,
        seed=seed,
        target_path=model.model,
        target_config=model.hf_config,
        target_tokenizer=tokenizer,
        **place,
    )


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
    section: str, draft_length: int, implied: bool, method: str, _environment: str
) -> tuple[ResolvedSettings, int]:
    """Return the settings, and the tokens of vLLM's own drafter if a lookup continues them.

    If vLLM's speculative configuration may be `implied` by the section, a draft length as in the settings is theirs.
    """
    flags = json.loads(section)
    key = "num_speculative_tokens"
    own = {"proposer": SPECULATIVE} if method and "proposer" not in flags else {}
    if method and flags.setdefault("proposer", ENGINE_DRAFTER) not in (ENGINE_DRAFTER, HYBRID):
        raise SettingsError.build(
            "vLLM's own drafter drafts on this server",
            who=f"{FLAG} {SECTION!r}",
            found=f"proposer {flags['proposer']!r}, and method {method!r} in {SPECULATIVE}",
            expected=f"no proposer, {ENGINE_DRAFTER!r}, or {HYBRID!r}, whose lookup continues its drafts",
            remedy=f"For specplug's proposers leave the method out of {SPECULATIVE}",
        )
    if method and flags["proposer"] == HYBRID:
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
        load_settings, flags_origin=f"{FLAG} {SECTION!r}", registry=registry, engine_drafts=bool(method)
    )
    if key not in flags and not (implied and load(flags).settings.num_speculative_tokens == draft_length):
        own[key] = SPECULATIVE
        flags[key] = draft_length
    settings = load(flags, origins_of=own)
    extends = method and settings.settings.extends_engine
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


def _ladder(vllm_config: Any) -> tuple[int, ...]:
    """Return the draft lengths that have CUDA graphs, as named by the launch; () allows any draft length.

    Ranks that step together have one length, and 0 if they may do without drafts.

    vLLM captures a draft length for the batch sizes listed with it, so one listed only for batches larger than
    ``max_num_seqs`` has no graphs.
    """
    spec = vllm_config.speculative_config
    largest = vllm_config.scheduler_config.max_num_seqs
    if has_lockstep_ranks(vllm_config):
        return (0, spec.num_speculative_tokens) if may_skip_drafts(vllm_config) else ()
    schedule = getattr(spec, "num_speculative_tokens_per_batch_size", None) or ()
    return tuple(sorted({min(int(w), spec.num_speculative_tokens) for first, _, w in schedule if first <= largest}))


def _draft_length_change(vllm_config: Any, v2: bool) -> DraftLengthChange:
    if has_lockstep_ranks(vllm_config):
        return DraftLengthChange.FIXED  # other lengths take all ranks off their graphs, or deadlock a drafter of vLLM's
    if not v2 or cuts_on_device(vllm_config) or not _ladder(vllm_config):
        return DraftLengthChange.FREE
    return DraftLengthChange.CAPTURED
