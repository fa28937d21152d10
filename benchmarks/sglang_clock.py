"""Attribution of host time in a running SGLang scheduler with specplug to the code that uses it."""

from __future__ import annotations

from typing import Any

from benchmarks.meter import Meter

SGLANG = "sglang"
PLAN, PROPOSE, NODES, OBSERVE, REST = "plan", "propose", "nodes", "observe", "rest of ours"
TARGET, VERIFY = "target", "verify"
PARTS = (PLAN, PROPOSE, NODES, OBSERVE, REST, TARGET, VERIFY)
"""specplug's parts: the plan; views, proposers and trim; draft nodes and the target's inputs; learning, the token table
and the results; the rest of the worker.  SGLang's: the target's forward and its sampler; verification."""


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
        (worker._operations, "nodes", NODES),
        (module, "prepare", NODES),
        (worker, "_verify_input", NODES),
        (worker.plain_steps, "prepare", NODES),
        (worker.drafting, "observe", OBSERVE),
        (worker.drafting, "verified", OBSERVE),
        (worker._operations, "append", OBSERVE),
        (worker.drafting.table, "append_one", OBSERVE),
        (worker.plain_steps, "completed", OBSERVE),
        (module, "relayed", OBSERVE),
        (worker, "_decode", REST),
        (worker.target_worker, "forward_batch_generation", TARGET),
        (eagle_utils, "eagle_sample", VERIFY),
        (worker, "_settle", VERIFY),
    ):
        setattr(owner, name, meter.wrapped(getattr(owner, name), part))
    return meter
