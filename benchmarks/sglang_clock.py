"""Attribution of host time in a running SGLang scheduler with specplug to the code that uses it."""

from __future__ import annotations

from typing import Any

from benchmarks.meter import Meter

SGLANG = "sglang"
PLAN, PROPOSE, NODES, OBSERVE, REST = "plan", "propose", "nodes", "observe", "rest of ours"
TARGET, VERIFY = "target", "verify"
PARTS = (PLAN, PROPOSE, NODES, OBSERVE, REST, TARGET, VERIFY)
"""The plan; views, proposers and trim; nodes and what is told to the target; what is learnt; the rest of the worker;
and of SGLang's: the target's forward, and the walk over what it said."""


def install(scheduler: Any) -> Meter:
    """Wrap the functions that run at every step, once."""
    from sglang.srt.speculative import eagle_utils

    import specplug_sglang.scheduler.worker as module

    worker = scheduler.draft_worker
    found: Meter | None = getattr(worker, "_specplug_meter", None)
    if found is not None:
        return found
    meter = worker._specplug_meter = Meter(SGLANG, PARTS)
    for owner, name, part in (
        (worker.drafting, "plan", PLAN),
        (worker, "_draft", PROPOSE),
        (module, "nodes_of", NODES),
        (module, "prepare", NODES),
        (worker, "_verify_input", NODES),
        (worker, "_observe", OBSERVE),
        (module, "relayed", OBSERVE),
        (worker, "_decode", REST),
        (worker.target_worker, "forward_batch_generation", TARGET),
        (eagle_utils, "eagle_sample", VERIFY),
        (worker, "_settle", VERIFY),
    ):
        setattr(owner, name, meter.wrapped(getattr(owner, name), part))
    return meter
