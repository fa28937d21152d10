"""Advice to the operator about a launch, printed by ``specplug doctor`` and logged by the server at start-up."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

from specplug.operator import launches
from specplug.operator.access import Operators
from specplug.operator.launches import ENGINE_DRAFTS, Launch, awaited_proposers, differing, lossy_acceptance
from specplug.operator.startup import start_line
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug_vllm.config import (
    drafter_of,
    engine_tokens,
    has_lockstep_ranks,
    lossy_method,
    require_settings,
    runner_of,
    use_of,
)
from specplug_vllm.startup import graphs, refusals

REFUSED_ON_V1 = (
    "the V1 runner refuses requests with min_p or logit_bias (HTTP 400), as with any speculation of vLLM's, and those "
    "that sample with a seed get no drafts, so that it repeats; the V2 runner serves them with drafts"
)
REFUSED_BY_VLLM = "vLLM refuses requests with min_p or logit_bias (HTTP 400), as with any speculation of its own"
FIXED_DRAFT_LENGTH = (
    "steps verify the server's maximum draft length, as ranks that choose others lose their CUDA graphs, and "
    "those with a drafter of vLLM's deadlock; a policy can cut requests' drafts, and on V2 draft nothing if all ranks "
    "agree or specplug's proposers draft"
)
_LOSSY = (
    "text does not follow the model's distribution, and vLLM does not count how much departs; `specplug audit` "
    "measures it"
)


def launch_of(vllm_config: Any) -> Launch:
    """Return the launch of a configuration that enables specplug."""
    resolved = require_settings(vllm_config)
    spec = vllm_config.speculative_config
    scheduler = vllm_config.scheduler_config
    runner = runner_of(vllm_config)
    use = use_of(vllm_config)
    method = drafter_of(vllm_config)
    lossy = lossy_method(vllm_config)
    scheduling = "async" if scheduler.async_scheduling else "synchronous"
    max_length = spec.num_speculative_tokens
    requests = scheduler.max_num_seqs
    ok: list[str] = []
    advice = [
        CheckResult(
            "ok", f"runs on the {runner.upper()} runner, {scheduling} scheduling, up to {max_length} draft tokens"
        ),
        token_budget(max_length, requests, scheduler.max_num_batched_tokens),
    ]
    if use == "engine":
        advice.append(CheckResult("ok", f"vLLM's own drafter drafts, by {method}; {ENGINE_DRAFTS}"))
    if use == "hybrid":
        first = f"vLLM's own drafter drafts {engine_tokens(vllm_config)} tokens, by {method}"
        advice.append(CheckResult("ok", f"{first}; {resolved.settings.proposer} continues them, or drafts instead"))
    if lossy:
        advice.append(lossy_acceptance(f"vLLM's {lossy}", _LOSSY))
    if captured := graphs.captured_lengths(vllm_config):
        advice.append(check_graphs(captured, requests))
    advice += launches.corpora_advice(resolved.settings, default_registry())
    if method:
        ok.append(REFUSED_BY_VLLM)
    elif runner == "v1":
        ok.append(REFUSED_ON_V1)
    if lost := refusals.dropped_processors(vllm_config):
        ok.append(f"the V1 runner serves without the logits processors {', '.join(lost)}, as the settings allow")
    awaited = awaited_proposers(resolved.settings, default_registry(), vllm_config.device_config.device_type)
    if runner == "v2" and awaited:
        ok.append(host_cost(awaited))
    if has_lockstep_ranks(vllm_config):
        size = vllm_config.parallel_config.data_parallel_size
        ok.append(f"data parallelism of {size}: {FIXED_DRAFT_LENGTH}")
    advice += [CheckResult("ok", text) for text in ok]
    drafter = {"engine": (f"vLLM's {method}",), "hybrid": (f"after vLLM's {method}",)}.get(use, ())
    facts = (*drafter, runner.upper(), scheduling, *(("LOSSY",) if lossy else ()))
    line = start_line(resolved.settings, max_length, *facts, status=routes())
    return Launch(line, differing(resolved.settings), tuple(advice))


def announce(vllm_config: Any) -> None:
    """Log the start-up line and the warnings of the launch, each once per server.

    Child processes log nothing: vLLM builds the configuration again in each of them.
    """
    if multiprocessing.parent_process() is None:
        launch_of(vllm_config).announce()


def routes() -> str:
    """Return whether this server has `/specplug/status`, for whom, and how to turn it on if it is off.

    vLLM does not strip the names in `VLLM_PLUGINS`, so spaces count; see `endpoints`.
    """
    named = os.environ.get("VLLM_PLUGINS")
    if named is not None and "specplug_http" not in named.split(","):
        return f"off (VLLM_PLUGINS={named},specplug_http turns it on)"
    return f"on, {Operators().description}"


def host_cost(names: Sequence[str]) -> str:
    """Describe the cost of proposers on the host on V2."""
    cost = launches.host_cost(names, "on the V2 runner")
    return f"{cost} (on the V1 runner they are on the host anyway)"


def token_budget(draft_length: int, max_num_seqs: int, max_num_batched_tokens: int) -> CheckResult:
    """Compare the tokens of a full batch at the maximum draft length with a step's token budget."""
    wanted = (draft_length + 1) * max_num_seqs
    sum_ = f"(K + 1) x max_num_seqs = ({draft_length} + 1) x {max_num_seqs} = {wanted}"
    if wanted <= max_num_batched_tokens:
        return CheckResult("ok", f"{sum_} fits into max_num_batched_tokens = {max_num_batched_tokens}")
    fitting = max_num_batched_tokens // max_num_seqs - 1
    narrower = f" or num_speculative_tokens to {fitting}" if fitting > 0 else ""
    return CheckResult(
        "warn",
        f"{sum_} exceeds max_num_batched_tokens = {max_num_batched_tokens}: "
        "a full batch at the maximum draft length leaves requests and prompts waiting",
        f"Raise --max-num-batched-tokens to {wanted} or more, or lower --max-num-seqs{narrower}",
    )


def check_graphs(captured: Mapping[int, int], max_num_seqs: int) -> CheckResult:
    """Compare the steps that have CUDA graphs, see `graphs.captured`, with the largest batch."""
    reach = ", ".join(f"{length} draft tokens up to {requests} requests" for length, requests in captured.items())
    longest, requests = next(iter(captured.items()))
    if requests >= max_num_seqs:
        return CheckResult("ok", f"full CUDA graphs for {reach}")
    return CheckResult(
        "warn",
        f"full CUDA graphs for {reach} only, of max_num_seqs = {max_num_seqs}: longer steps run without",
        f"Raise --max-cudagraph-capture-size to {max_num_seqs * (longest + 1)}, which takes memory, lower "
        "--max-num-seqs, or leave it to a policy that drafts less for more requests, as 'batch' does",
    )
