"""Refusals of configurations that specplug would serve incorrectly, before any weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from specplug.errors import EngineError
from specplug_vllm.config import (
    FLAG,
    SECTION,
    SPECULATIVE,
    cuts_on_device,
    drafter_of,
    each_rank_drafts,
    has_lockstep_ranks,
    require_settings,
    runner_of,
    use_of,
)

EXTENDED = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods whose drafters take a step's draft length, so that lookup can continue them."""

PROCESSORS = "vllm.logits_processors"
ALLOWED_BY = "dropped_logits_processors"


class Refusal(NamedTuple):
    """A refusal, if it applies, and its message."""

    applies: bool
    what: str
    found: str
    expected: str
    remedy: str


def refuse_unsupported(vllm_config: Any) -> None:
    """Refuse configurations that specplug would serve incorrectly, and plans that vLLM's own drafter would not follow.

    Raises:
        EngineError: specplug does not support this server's configuration.
    """
    for refusal in refusals(vllm_config):
        if refusal.applies:
            _, what, found, expected, remedy = refusal
            raise EngineError.build(what, who="specplug_vllm", found=found, expected=expected, remedy=remedy)


def refusals(vllm_config: Any) -> Iterator[Refusal]:
    """Yield the refusals of servers; the first one that applies is raised."""
    parallel = vllm_config.parallel_config
    ranks = parallel.tensor_parallel_size
    stages = parallel.pipeline_parallel_size
    use = use_of(vllm_config)
    method = drafter_of(vllm_config)
    cuts = cuts_on_device(vllm_config)
    is_v1 = runner_of(vllm_config) == "v1"
    alone = f"Leave {SECTION!r} out of {FLAG}"
    yield Refusal(
        getattr(vllm_config, "watermark_config", None) is not None,
        "watermarking is not supported",
        "a watermark configuration",
        "none",
        "Serve watermarked output without specplug",
    )
    yield Refusal(  # V1 crashes with any speculation; on V2 the first stage fails its check of the number of drafts
        stages > 1,
        "pipeline parallelism is not supported",
        f"pipeline_parallel_size {stages}",
        "1",
        "Use tensor parallelism, or serve without specplug",
    )
    yield Refusal(
        is_v1 and each_rank_drafts(vllm_config),
        "V1 takes all ranks' drafts from the first one",
        "draft_ranks 'each'",
        "'first'",
        "Leave the setting out, or use the V2 runner",
    )
    is_silent = use == "engine" and method == "extract_hidden_states"
    yield Refusal(is_silent, "the method does not draft", f"method {method!r}", "one that drafts", alone)
    if use == "hybrid":
        what = "lookup cannot continue the drafts of vLLM's own drafter"
        otherwise = f"Leave the proposer out of {FLAG} {SECTION!r}: specplug then plans the drafts"
        replicas = f"data_parallel_size {parallel.data_parallel_size} of a mixture of experts"
        samples = ranks > 1 and vllm_config.speculative_config.draft_sample_method != "greedy"
        sampling = f"draft_sample_method 'probabilistic' on {ranks} ranks"
        flag = "enable_adaptive_verification"
        methods = f"one of {', '.join(EXTENDED)}"
        yield Refusal(method not in EXTENDED, what, f"method {method!r}", methods, otherwise)
        yield Refusal(has_lockstep_ranks(vllm_config), what, replicas, "1", otherwise)
        yield Refusal(samples, what, sampling, "'greedy'", otherwise)
        yield Refusal(cuts, what, flag, "nothing", f"Leave it out of {SPECULATIVE}")
    yield Refusal(
        use == "engine" and cuts,
        "vLLM's adaptive verification and specplug's policy would both choose how much to verify",
        f"enable_adaptive_verification with method {method!r}",
        "one of them",
        f"{alone}, or enable_adaptive_verification out of {SPECULATIVE}",
    )


# -- custom logits processors --------------------------------------------------------------------------------------
# V1 loads none of them with speculation, and says nothing of installed ones.  V2 loads those written for it, and
# applies them at every draft position; it refuses to start beside V1's.


def installed_processors() -> dict[str, str]:
    """Return the packages of the processors that are installed as plug-ins of vLLM, by the processors' names."""
    return {each.name: "" if each.dist is None else each.dist.name for each in entry_points(group=PROCESSORS)}


def dropped_processors(vllm_config: Any) -> list[str]:
    """Return the names of installed processors that a server which enables specplug runs without."""
    return sorted(installed_processors()) if runner_of(vllm_config) == "v1" else []


def refuse_processors(vllm_config: Any) -> None:
    """Refuse to drop a processor unless the settings name it as dispensable.

    Raises:
        EngineError: V1 would serve without a processor that is installed, or that the launch names.
    """
    if runner_of(vllm_config) == "v2":
        return
    packages = installed_processors()
    allowed = require_settings(vllm_config).settings.dropped_logits_processors
    lost = [f"{name!r} of the package {packages[name]}" for name in sorted(packages) if name not in allowed]
    flag = [f"{each} of --logits-processors" for each in vllm_config.model_config.logits_processors or ()]
    if lost or flag:
        ways = [f"name dispensable ones in the setting {ALLOWED_BY!r}"] * bool(lost)
        ways += ["leave the flag out"] * bool(flag)
        raise EngineError.build(
            "vLLM's V1 runner loads no logits processors with speculation",
            who="specplug_vllm",
            found=", ".join([*lost, *flag]),
            expected="none",
            remedy=f"Use the V2 runner, which loads those written for it, or {' and '.join(ways)}",
        )
