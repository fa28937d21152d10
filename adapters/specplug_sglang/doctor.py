"""SGLang checks of ``specplug doctor``, and the advice on a launch, which the server logs at start-up too.

SGLang derives omitted arguments from device and model, and so resolves a launch line itself, without starting anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from specplug.errors import EngineError, describe
from specplug.operator import launches
from specplug.operator.launches import ENGINE_DRAFTS, Launch, ServerCommand, differing, lossy_acceptance
from specplug.operator.startup import start_line
from specplug.plugins.registry import default_registry
from specplug.plugins.specs import CheckResult
from specplug.seams.support import InstalledEngine
from specplug.settings.model import Settings
from specplug_sglang.config import (
    ALGORITHM,
    default_requests_of,
    drafter,
    engine_caps,
    lossy_arguments,
    resolved,
    resolved_args,
    use_of,
    verifies_greedily,
)
from specplug_sglang.seams import VERSIONS

MODULE = "sglang.launch_server"

ENGINE = InstalledEngine(
    package="sglang",
    versions=VERSIONS,
    seams="specplug_sglang.seams",
    group="sglang.srt.plugins",
    target="specplug_sglang.entry:register",
    allowing="SGLANG_PLUGINS",
    empty_allows=True,
    statement="import sglang.srt.entrypoints.engine",
    remedy="Install what the message names. SGLang's wheels are for GPUs; for a CPU see docs/serving.md, On a CPU",
)


FLAG = "--max-running-requests"
UNDRAFTED = (
    "requests with penalties, min_new_tokens, a custom logit processor, a grammar of Outlines, or min_p when sampling "
    "get no drafts: SGLang verifies them inexactly, so they are served one token per step"
)
DRAWN = (
    "SGLang's verification on this device takes the likeliest token at any temperature: for requests that sample the "
    "token after each draft token is drawn by SGLang's sampler instead"
)
CUT = (
    "all rows have one draft length: of requests with a lower limit of their own, with penalties or with "
    "min_new_tokens, the rest of the draft is verified and never accepted"
)
EXTENDS = "lookup continues them, or its own draft stands instead, row by row"
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
_RANKS = "each step rank 0 sends the draft length to the other tensor-parallel ranks, between hosts"
_LOSSY = (
    "sampled text does not follow the model's distribution; /specplug/status and /metrics count how many tokens depart"
)


def installed(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang is supported and loads specplug."""
    return ENGINE.check()


def imports(settings: Settings) -> list[CheckResult]:
    """Report whether the installed SGLang imports and has every seam; return nothing if there is none."""
    return ENGINE.check_import()


def launch(settings: Settings, launch: str = "") -> list[CheckResult]:
    """Report on the server that a launch line would start; return nothing for another engine's line."""
    names = launches.awaited_proposers(settings, default_registry(), "cuda")
    in_general = [STEP_PLANNER, GRAMMARS, UNDRAFTED, REFUSED]
    in_general += [launches.host_cost(names, "on a GPU")] if names else []
    is_installed = ENGINE.folder is not None
    return COMMAND.check(launch, is_installed=is_installed, remedy=VERSIONS.remedy, in_general=in_general)


def arguments_in(words: list[str]) -> list[str] | None:
    """Return the server's arguments in a line's words, with the model as a flag; None if they start no server."""
    for place, word in enumerate(words):
        if word == MODULE:
            return words[place + 1 :]
        if word == "serve" and place and PurePath(words[place - 1]).name == "sglang":
            arguments = words[place + 1 :]
            if "--model-type" in arguments:  # a flag of the command, not of the server
                at = arguments.index("--model-type")
                del arguments[at : at + 2]
            arguments = [each for each in arguments if not each.startswith("--model-type=")]
            is_flag = not arguments or arguments[0].startswith("-")
            return arguments if is_flag else ["--model-path", *arguments]
    return None


def resolved_launch(arguments: list[str]) -> Launch | None:
    """Parse and resolve a server's arguments with SGLang's own code."""
    try:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import prepare_server_args
    except ImportError as error:
        raise EngineError.build(
            "SGLang does not import on this machine",
            who="specplug_sglang",
            found=describe(error),
            remedy="Run specplug doctor on the machine that will serve, in SGLang's environment",
        ) from error
    load_plugins()
    server_args = prepare_server_args(arguments)
    is_ours = use_of(server_args)
    if is_ours:
        _require_loaded()
    server_args.resolve_once()
    return launch_of(server_args) if is_ours else None


COMMAND = ServerCommand(
    engine="SGLang",
    package="sglang",
    resolved=resolved_launch,
    arguments_in=arguments_in,
    expected=f"'python -m {MODULE} --model-path MODEL ...' or 'sglang serve MODEL ...'",
    enabling=f"--speculative-algorithm {ALGORITHM}",
)


def _require_loaded() -> None:
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(ALGORITHM) is None:
        raise EngineError.build(
            "SGLang does not load specplug, which --speculative-algorithm names",
            who="specplug_sglang",
            found=f"SGLANG_PLUGINS={os.environ.get('SGLANG_PLUGINS')!r}",
            expected="'specplug' in it, or no such variable",
            remedy="Add 'specplug' to it, or unset it; if it is not set, reinstall specplug in SGLang's environment",
        )


def launch_of(server_args: Any) -> Launch:
    """Return the launch of a server's arguments, which SGLang has resolved."""
    view = resolved_args(server_args)
    caps = engine_caps(server_args)
    settings = resolved(server_args).settings
    use = use_of(server_args)
    method = drafter(server_args)
    lossy = lossy_arguments(view)
    device = str(view.device)
    requests = int(view.max_running_requests)
    limited_by = _limited_by(server_args, requests)
    limit = f"(limited by {limited_by})"
    scheduling = "synchronous" if view.disable_overlap_schedule else "overlap"
    topk = int(view.speculative_eagle_topk or 1)
    shape = "chains" if topk == 1 else "trees"
    longest = caps.max_draft_length
    decoding = view.cuda_graph_config.decode
    graphs_up_to = None if device == "cpu" or decoding.backend == "disabled" else int(decoding.max_bs)
    reach = CheckResult("ok", f"every draft length from 0 to {longest} may be chosen; {device} has no graphs")
    if caps.captured_draft_lengths:
        reach = graphs_reach(caps.captured_draft_lengths, graphs_up_to, requests, is_chosen=limited_by == FLAG)
    awaited = launches.awaited_proposers(settings, default_registry(), device)
    remarks = (
        (True, STEP_PLANNER),
        (awaited, launches.host_cost(awaited, "on a GPU")),
        (caps.tensor_parallel_size > 1, _RANKS),
        (True, GRAMMARS),
        (use == "proposers", UNDRAFTED),
        (use == "engine", f"SGLang's own drafter drafts, by {method}; {ENGINE_DRAFTS}"),
        (use == "hybrid", f"SGLang's own drafter drafts {caps.engine_tokens} tokens, by {method}; {EXTENDS}"),
        (method, CUT),
        (verifies_greedily(), DRAWN),
    )
    head = (
        f"drafts are {shape}{f' (--speculative-eagle-topk {topk})' if topk > 1 else ''} of up to {longest} tokens; "
        f"{scheduling} scheduling, up to {requests} requests at a time {limit}, {view.attention_backend} attention on "
        f"{device}"
    )
    advice = [CheckResult("ok", head), reach, *([lossy_acceptance(lossy, _LOSSY)] if lossy else [])]
    advice += launches.corpora_advice(settings, default_registry())
    advice += [CheckResult("ok", text) for applies, text in remarks if applies]
    own = [f"SGLang's {method}"] if method else []
    facts = [*own, shape, scheduling, f"up to {requests} requests {limit}", *(["LOSSY"] if lossy else [])]
    line = start_line(settings, longest, *facts, status="on, where HTTP is served")
    return Launch(line, differing(settings), tuple(advice))


def _limited_by(server_args: Any, requests: int) -> str:
    default, why = (48, "SGLang's default for drafters") if drafter(server_args) else default_requests_of(server_args)
    return why if requests == default else FLAG


def graphs_reach(lengths: Sequence[int], graphs_up_to: int | None, requests: int, *, is_chosen: bool) -> CheckResult:
    """Compare the batches that have graphs, up to `graphs_up_to`, with the largest; None if every step runs eagerly.

    Plans choose among `lengths`.  `requests` is the most at a time, which the operator may have chosen.
    """
    line = f"draft lengths {', '.join(map(str, lengths))} may be chosen"
    if graphs_up_to is None:
        return CheckResult("ok", f"{line}; graphs are switched off, so every step runs eagerly")
    line = f"{line}, each with graphs for up to {graphs_up_to} requests"
    if requests <= graphs_up_to:
        return CheckResult("ok", line)
    if not is_chosen:
        return CheckResult("ok", f"{line}: larger batches run eagerly, as without speculation")
    return CheckResult(
        "warn",
        f"{line}: larger batches, up to max_running_requests = {requests}, run eagerly",
        f"Raise --cuda-graph-max-bs-decode to {requests}, or lower --max-running-requests to {graphs_up_to}",
    )
