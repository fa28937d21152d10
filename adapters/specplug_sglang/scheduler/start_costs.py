"""What steps of a worker cost, as it is known before its first request: timed, or kept from an earlier start.

Rank 0 finds or measures the costs, and all ranks run the same steps: it gives the time, and decides whether anything
is to be timed and for how long.  Planners of other ranks learn nothing, as rank 0 decides.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from specplug.cost.measuring import Measurement, StepLimits, measure, step_sizes
from specplug.cost.store import StartCosts, costs_at_start
from specplug_sglang import seams
from specplug_sglang.config import resolved_args
from specplug_sglang.scheduler.timed_steps import TimedSteps

if TYPE_CHECKING:
    from specplug_sglang.scheduler.ranks import RankGroup
    from specplug_sglang.scheduler.worker import SpeculativeWorker

logger = logging.getLogger("specplug")

T = TypeVar("T")

ARGUMENTS = (
    *("model_path", "revision", "dtype", "quantization", "kv_cache_dtype", "page_size", "context_length"),
    *("attention_backend", "decode_attention_backend", "prefill_attention_backend", "moe_runner_backend"),
    *("disable_cuda_graph", "enable_torch_compile", "tp_size", "ep_size", "speculative_eagle_topk"),
)
"""Arguments of a server that change what its steps cost."""


def find(worker: SpeculativeWorker) -> None:
    """Let the planner of a worker, which is ready to serve, know what its steps cost, if it reads costs."""
    drafting = worker.drafting
    settings = drafting.resolved.settings.costs
    wanted = settings.measure and drafting.step_planner.reads_costs and seams.available("timing")
    seconds = worker.ranks.agree(max(1, round(settings.seconds * 1e3)) if wanted else 0) / 1e3
    if not (seconds and TimedSteps.applies(worker)):
        return
    steps = TimedSteps(worker)
    longest = drafting.caps.max_draft_length
    lengths = drafting.caps.captured_draft_lengths or tuple(range(longest + 1))
    limits = StepLimits(steps.most_requests, steps.most_requests * (longest + 1), lengths, pads=True)

    def clock() -> float:
        return worker.ranks.agree(perf_counter_ns()) / 1e9

    def timed() -> Measurement:
        return measure(steps.run, step_sizes(limits), seconds, clock)

    found = on_rank_0(worker.ranks, timed, lambda measured: costs_at_start(key_of(worker), measured))
    if found is not None and found.costs:
        drafting.start_costs = found
        drafting.step_planner.stage.calibrate(found.costs)


def on_rank_0(
    ranks: RankGroup, timed: Callable[[], Measurement], find: Callable[[Callable[[], Measurement]], StartCosts]
) -> StartCosts | None:
    """Return on rank 0 what `find` returns, given `timed`; if it calls that, all ranks do.  None on other ranks.

    Whatever fails, no rank stops or waits for a message that rank 0 does not send.
    """
    if ranks.rank:
        if ranks.agree(0):
            _contained(timed)
        return None
    begun: list[int] = []

    def on_all() -> Measurement:
        begun.append(ranks.agree(1))
        return timed()

    found = _contained(lambda: find(on_all))
    if not begun:
        ranks.agree(0)
    return found


def _contained(action: Callable[[], T]) -> T | None:
    """Return what an action returns; None if it fails, as no server may stop for want of these costs."""
    try:
        return action()
    except Exception:  # whatever an engine raises; a failed step fails on all ranks
        logger.exception("steps are not timed at start, so their costs are learnt while serving")
        return None


def key_of(worker: SpeculativeWorker) -> dict[str, object]:
    """Return everything that the costs of a worker's steps depend on."""
    from sglang.srt.runtime_context import get_exec

    arguments: Any = resolved_args(worker.server_args)
    drafting = worker.drafting
    graphs = get_exec().graph.cuda_graph_config
    on_gpu = worker.device.type == "cuda"
    return {
        "engine": f"sglang {seams.installed_version()}",
        "torch": torch.__version__,
        **{name: str(getattr(arguments, name, None)) for name in ARGUMENTS},
        "device": torch.cuda.get_device_name() if on_gpu else str(worker.device),
        "host": socket.gethostname(),
        "threads": None if on_gpu else torch.get_num_threads(),
        "affinity": None if on_gpu else sorted(os.sched_getaffinity(0)),
        "graphs": None if graphs is None else str(graphs.decode.bs),
        "requests": worker.req_to_token_pool.req_to_token.shape[0] - 1,
        "draft_lengths": [drafting.caps.max_draft_length, *drafting.caps.captured_draft_lengths],
        "policy": drafting.resolved.settings.policy,
        "seconds": drafting.resolved.settings.costs.seconds,
    }
