"""Advice to the operator about a launch, printed by ``specplug doctor`` and logged by the server at start-up."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any

from specplug.operator.access import Operators
from specplug.operator.launches import awaited_proposers, differing
from specplug.operator.startup import start_line
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug_vllm.config import engine_method, lossy_method, ranks_step_together, resolved, runner_of
from specplug_vllm.startup import graphs

logger = logging.getLogger("specplug")


@dataclass(frozen=True, slots=True)
class Launch:
    """Resolved launch of a server with specplug enabled.

    Attributes:
        runner: "v1" or "v2".
        draft_length: the server's maximum draft length.
        max_num_batched_tokens: most tokens of all requests in one step.
        data_parallel_size: number of ranks that run every step together; 1 for a dense model.
        settings: specplug's settings that differ from their defaults.
        awaited_proposers: enabled proposers on the host that each step on V2 waits for.
        captured: (draft length, most requests) of the steps that have full CUDA graphs, longest drafts first.
        engine_drafter: method of vLLM's own drafter, if that drafts.
        lossy: option by which vLLM's verification is lossy; "" if it is not.
    """

    runner: str
    async_scheduling: bool
    draft_length: int
    max_num_seqs: int
    max_num_batched_tokens: int
    data_parallel_size: int
    settings: dict[str, Any]
    awaited_proposers: tuple[str, ...]
    captured: tuple[tuple[int, int], ...] = ()
    engine_drafter: str | None = None
    lossy: str = ""


def launch_of(vllm_config: Any) -> Launch:
    """Return the launch of a configuration that enables specplug."""
    found = resolved(vllm_config)
    assert found is not None
    scheduler = vllm_config.scheduler_config
    return Launch(
        runner=runner_of(vllm_config),
        async_scheduling=bool(scheduler.async_scheduling),
        draft_length=vllm_config.speculative_config.num_speculative_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        data_parallel_size=vllm_config.parallel_config.data_parallel_size if ranks_step_together(vllm_config) else 1,
        settings=differing(found.settings),
        awaited_proposers=awaited_proposers(found.settings, default_registry(), vllm_config.device_config.device_type),
        captured=tuple(graphs.captured(vllm_config).items()),
        engine_drafter=engine_method(vllm_config),
        lossy=lossy_method(vllm_config),
    )


def advise(launch: Launch) -> list[CheckResult]:
    """Return advice on a launch, warnings included."""
    scheduling = "async" if launch.async_scheduling else "synchronous"
    head = (
        f"runs on the {launch.runner.upper()} runner, {scheduling} scheduling, up to {launch.draft_length} draft tokens"
    )
    results = [CheckResult("ok", head), _token_budget(launch)]
    if launch.engine_drafter is not None:
        results.append(CheckResult("ok", f"vLLM's own drafter drafts, by {launch.engine_drafter}; {ENGINE_DRAFTS}"))
    if launch.lossy:
        results.append(
            CheckResult("warn", LOSSY.format(launch.lossy), "Leave it out to serve every request losslessly")
        )
    if launch.captured:
        results.append(_graphs(launch))
    if launch.runner == "v1" or launch.engine_drafter is not None:
        results.append(CheckResult("ok", REFUSED_ON_V1 if launch.engine_drafter is None else REFUSED_BY_VLLM))
    if launch.runner == "v2" and launch.awaited_proposers:
        results.append(CheckResult("ok", host_cost(launch.awaited_proposers)))
    if launch.data_parallel_size > 1:
        results.append(CheckResult("ok", f"data parallelism of {launch.data_parallel_size}: {FIXED_DRAFT_LENGTH}"))
    return results


def announce(vllm_config: Any) -> None:
    """Log the start-up line and the warnings of the launch, each once per server.

    Child processes log nothing: vLLM builds the configuration again in each of them.
    """
    if multiprocessing.parent_process() is not None:
        return
    found, launch = resolved(vllm_config), launch_of(vllm_config)
    assert found is not None
    scheduling = "async" if launch.async_scheduling else "synchronous"
    runner = launch.runner.upper()
    drafter = [] if launch.engine_drafter is None else [f"vLLM's {launch.engine_drafter}"]
    facts = (*drafter, runner, scheduling, *(["LOSSY"] if launch.lossy else []))
    _log_once(logging.INFO, start_line(found.settings, launch.draft_length, *facts, status=routes()))
    for result in advise(launch):
        if result.status != "ok":
            _log_once(logging.WARNING, f"{result.summary}. {result.remedy}")


def routes() -> str:
    """Return whether this server has `/specplug/status`, for whom, and how to turn it on if it is off.

    vLLM does not strip the names in `VLLM_PLUGINS`, so spaces count; see `endpoints`.
    """
    named = os.environ.get("VLLM_PLUGINS")
    if named is not None and "specplug_http" not in named.split(","):
        return f"off (VLLM_PLUGINS={named},specplug_http turns it on)"
    return f"on, {Operators().whom}"


REFUSED_ON_V1 = (
    "the V1 runner refuses requests with min_p or logit_bias (HTTP 400), as with any speculation of vLLM's, and those "
    "that sample with a seed get no drafts, so that it repeats; the V2 runner serves them with drafts"
)
LOSSY = (
    "LOSSY by vLLM's {}: text does not follow the model's distribution, and vLLM does not count how much departs; "
    "`specplug audit` measures it"
)
REFUSED_BY_VLLM = "vLLM refuses requests with min_p or logit_bias (HTTP 400), as with any speculation of its own"
ENGINE_DRAFTS = "specplug's policy chooses how many tokens it drafts and the target verifies"
FIXED_DRAFT_LENGTH = (
    "steps verify the server's maximum draft length, as ranks that choose others lose their CUDA graphs, and "
    "those with a drafter of vLLM's deadlock; a policy can cut requests' drafts, and on V2 draft nothing if all ranks "
    "agree or specplug's proposers draft"
)


def host_cost(names: tuple[str, ...]) -> str:
    """Describe the cost of proposers on the host on V2."""
    several = "draft" if len(names) > 1 else "drafts"
    return (
        f"{', '.join(names)} {several} on the host, on a thread: on the V2 runner every step then waits once for the "
        "device's new tokens (on the V1 runner they are on the host anyway)"
    )


def _token_budget(launch: Launch) -> CheckResult:
    """Compare the tokens of a full batch at the maximum draft length with a step's token budget."""
    wanted = (launch.draft_length + 1) * launch.max_num_seqs
    sum_ = f"(K + 1) x max_num_seqs = ({launch.draft_length} + 1) x {launch.max_num_seqs} = {wanted}"
    if wanted <= launch.max_num_batched_tokens:
        return CheckResult("ok", f"{sum_} fits into max_num_batched_tokens = {launch.max_num_batched_tokens}")
    fitting = launch.max_num_batched_tokens // launch.max_num_seqs - 1
    narrower = f" or num_speculative_tokens to {fitting}" if fitting > 0 else ""
    return CheckResult(
        "warn",
        f"{sum_} exceeds max_num_batched_tokens = {launch.max_num_batched_tokens}: "
        "a full batch at the maximum draft length leaves requests and prompts waiting",
        f"Raise --max-num-batched-tokens to {wanted} or more, or lower --max-num-seqs{narrower}",
    )


def _graphs(launch: Launch) -> CheckResult:
    """Compare the steps that have CUDA graphs with the largest batch."""
    reach = ", ".join(f"{length} draft tokens up to {requests} requests" for length, requests in launch.captured)
    longest, requests = launch.captured[0]
    if requests >= launch.max_num_seqs:
        return CheckResult("ok", f"full CUDA graphs for {reach}")
    return CheckResult(
        "warn",
        f"full CUDA graphs for {reach} only, of max_num_seqs = {launch.max_num_seqs}: longer steps run without",
        f"Raise --max-cudagraph-capture-size to {launch.max_num_seqs * (longest + 1)}, which takes memory, lower "
        "--max-num-seqs, or leave it to a policy that drafts less for more requests, as 'batch' does",
    )


@functools.cache
def _log_once(level: int, text: str) -> None:
    logger.log(level, "%s", text)
