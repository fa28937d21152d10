"""Advice to the operator about a launch, printed by ``specplug doctor`` and logged by the server at start-up."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, fields
from typing import Any

from specplug.operator.launches import awaited_proposers, differing
from specplug.operator.startup import start_line
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug_sglang.config import (
    decided,
    default_requests_of,
    engine_caps,
    engine_method,
    lossy_arguments,
    proposes,
    resolved,
)

logger = logging.getLogger("specplug")


@dataclass(frozen=True, slots=True)
class Launch:
    """Resolved launch of a server with specplug enabled.

    Attributes:
        draft_length: the server's maximum draft length.
        topk: ``--speculative-eagle-topk``: 1 for chains, more for trees.
        overlap: whether the host prepares a step while the device runs the previous one.
        max_running_requests: most concurrent requests.
        limited_by: what this number follows from.
        draft_lengths: draft lengths that plans choose among and that have graphs; empty if any length may be chosen.
        graphs_up_to: the largest batch that decodes as a graph; None if every step runs eagerly.
        settings: specplug's settings that differ from their defaults.
        awaited_proposers: enabled proposers on the host that each step on a GPU waits for.
        engine_drafter: algorithm of SGLang's own drafter, if that drafts.
        lossy: arguments by which SGLang's verification is lossy; "" if it is not.
    """

    draft_length: int
    topk: int
    overlap: bool
    device: str
    attention_backend: str
    max_running_requests: int
    limited_by: str
    tensor_parallel_size: int
    draft_lengths: tuple[int, ...]
    graphs_up_to: int | None
    settings: dict[str, Any]
    awaited_proposers: tuple[str, ...]
    engine_drafter: str | None = None
    lossy: str = ""

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Launch:
        """Rebuild a launch from its JSON form."""
        values = {field.name: plain[field.name] for field in fields(cls)}
        return cls(
            **{
                **values,
                "draft_lengths": tuple(plain["draft_lengths"]),
                "awaited_proposers": tuple(plain["awaited_proposers"]),
            }
        )


def launch_of(server_args: Any) -> Launch:
    """Return the launch of a server's arguments, which SGLang has resolved."""
    view, caps, settings = decided(server_args), engine_caps(server_args), resolved(server_args).settings
    most = int(view.max_running_requests)
    return Launch(
        draft_length=caps.max_draft_length,
        topk=int(view.speculative_eagle_topk or 1),
        overlap=not view.disable_overlap_schedule,
        device=str(view.device),
        attention_backend=str(view.attention_backend),
        max_running_requests=most,
        limited_by=_limited_by(server_args, most),
        tensor_parallel_size=caps.tensor_parallel_size,
        draft_lengths=caps.captured_draft_lengths,
        graphs_up_to=_graphs_up_to(view),
        settings=differing(settings),
        awaited_proposers=awaited_proposers(settings, default_registry(), str(view.device)),
        engine_drafter=engine_method(server_args),
        lossy=lossy_arguments(view),
    )


def _limited_by(server_args: Any, most: int) -> str:
    default, why = default_requests_of(server_args) if proposes(server_args) else (48, "SGLang's default for drafters")
    return why if most == default else FLAG


def _graphs_up_to(view: Any) -> int | None:
    decoding = view.cuda_graph_config.decode
    return None if view.device == "cpu" or decoding.backend == "disabled" else int(decoding.max_bs)


def advise(launch: Launch) -> list[CheckResult]:
    """Return advice on a launch, warnings included."""
    results = [CheckResult("ok", _head(launch)), _graphs(launch)]
    results += [CheckResult("ok", text) for text in on_the_host(launch)]
    if launch.lossy:
        results.append(
            CheckResult("warn", LOSSY.format(launch.lossy), "Leave it out to serve every request losslessly")
        )
    if launch.engine_drafter is not None:
        drafter = f"SGLang's own drafter drafts, by {launch.engine_drafter}; {ENGINE_DRAFTS}"
        return [*results, CheckResult("ok", drafter), CheckResult("ok", CUT)]
    return [*results, CheckResult("ok", UNDRAFTED)]


def announce(server_args: Any) -> None:
    """Log the start-up line and the warnings of the launch, each once per process."""
    launch = launch_of(server_args)
    shape = "chains" if launch.topk == 1 else "trees"
    scheduling = "overlap" if launch.overlap else "synchronous"
    settings = resolved(server_args).settings
    drafter = [] if launch.engine_drafter is None else [f"SGLang's {launch.engine_drafter}"]
    requests = f"up to {launch.max_running_requests} requests (limited by {launch.limited_by})"
    facts = (*drafter, shape, scheduling, requests, *(["LOSSY"] if launch.lossy else []))
    _log_once(logging.INFO, start_line(settings, launch.draft_length, *facts, status="on, where HTTP is served"))
    for result in advise(launch):
        if result.status != "ok":
            _log_once(logging.WARNING, f"{result.summary}. {result.remedy}")


FLAG = "--max-running-requests"
LOSSY = (
    "LOSSY by {}: sampled text does not follow the model's distribution; /specplug/status and /metrics count how many "
    "tokens depart"
)
UNDRAFTED = (
    "requests with penalties, min_new_tokens, a custom logit processor, a grammar of Outlines, or min_p when sampling "
    "get no drafts: SGLang verifies them inexactly, so they are served one token per step"
)
ENGINE_DRAFTS = "specplug's policy chooses how many tokens it drafts and the target verifies"
CUT = (
    "all rows have one draft length: of requests with a lower limit of their own, with penalties or with "
    "min_new_tokens, the rest of the draft is verified and never accepted"
)
REFUSED = (
    "refused at start-up: attention with data parallelism, pipeline parallelism, prefill and decode on separate "
    "servers, two-batch overlap, SGLang's adaptive speculation or rejection sampling, acceptance thresholds with "
    "trees, watermarks, its servers in Rust or over gRPC, trees with a page size above 1 (except with flashinfer), "
    "and trees for a model with recurrent state"
)
STEP_PLANNER = (
    "each step on the host: the plan, from results that are one step old; drafts and their outcomes stay on the device"
)
GRAMMARS = "steps with a grammar in the batch copy the drafts to the host and wait there for the grammar's mask"


def host_cost(names: tuple[str, ...]) -> str:
    """Describe the cost of proposers on the host."""
    several = "draft" if len(names) > 1 else "drafts"
    return (
        f"{', '.join(names)} {several} on the host, on a thread: on a GPU every step then waits once for the device's "
        "new tokens"
    )


def on_the_host(launch: Launch) -> list[str]:
    """Describe the work of a step that runs on the host."""
    lines = [STEP_PLANNER]
    if launch.awaited_proposers:
        lines.append(host_cost(launch.awaited_proposers))
    if launch.tensor_parallel_size > 1:
        lines.append("each step rank 0 sends the draft length to the other tensor-parallel ranks, between hosts")
    return [*lines, GRAMMARS]


def _head(launch: Launch) -> str:
    shape = "chains" if launch.topk == 1 else f"trees (--speculative-eagle-topk {launch.topk})"
    scheduling = "overlap" if launch.overlap else "synchronous"
    return (
        f"drafts are {shape} of up to {launch.draft_length} tokens; {scheduling} scheduling, up to "
        f"{launch.max_running_requests} requests at a time (limited by {launch.limited_by}), "
        f"{launch.attention_backend} attention on {launch.device}"
    )


def _graphs(launch: Launch) -> CheckResult:
    """Describe which draft lengths have graphs, and warn if the largest batches have none."""
    if not launch.draft_lengths:
        return CheckResult(
            "ok", f"every draft length from 0 to {launch.draft_length} may be chosen; {launch.device} has no graphs"
        )
    draft_lengths = ", ".join(map(str, launch.draft_lengths))
    if launch.graphs_up_to is None:
        return CheckResult(
            "ok", f"draft lengths {draft_lengths} may be chosen; graphs are switched off, so every step runs eagerly"
        )
    line = f"draft lengths {draft_lengths} may be chosen, each with graphs for up to {launch.graphs_up_to} requests"
    if launch.max_running_requests <= launch.graphs_up_to:
        return CheckResult("ok", line)
    if launch.limited_by != FLAG:
        return CheckResult("ok", f"{line}: larger batches run eagerly, as without speculation")
    most = launch.max_running_requests
    return CheckResult(
        "warn",
        f"{line}: larger batches, up to max_running_requests = {most}, run eagerly",
        f"Raise --cuda-graph-max-bs-decode to {most}, or lower --max-running-requests to {launch.graphs_up_to}",
    )


@functools.cache
def _log_once(level: int, text: str) -> None:
    logger.log(level, "%s", text)
