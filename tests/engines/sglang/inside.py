"""Functions that run inside an engine: with the `Engine` first by ``engine.call("inside.generate", ...)``, with the
scheduler first by ``engine.inside("inside.facts")``.  All return JSON values.
"""

from __future__ import annotations

import json
import time
from typing import Any


def in_scheduler(engine: Any, function: str, arguments: dict[str, Any]) -> Any:
    """Run a function in the scheduler's process; see `Engine.inside`."""
    import zmq
    from sglang.srt.managers.io_struct import RpcReqInput, sock_recv, sock_send
    from specplug_test_sglang_cpu.calls import METHOD

    from tests.engines.host import RaisingReported

    parameters = {"function": function, "arguments": arguments}
    sock_send(engine.send_to_rpc, RpcReqInput(method=METHOD, parameters=parameters))
    message = json.loads(sock_recv(engine.send_to_rpc, flags=zmq.BLOCKY).message)
    if "raised" in message:
        raise RaisingReported(message["raised"])
    return message["result"]


def generate(
    engine: Any,
    prompts: list[str | list[int]],
    params: dict[str, Any] | list[dict[str, Any]] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Generate for all prompts at once.

    Args:
        prompts: texts or token ids, all of one kind.
        params: sampling parameters, for all or one each; greedy with 40 tokens when left out.
        options: more arguments of `Engine.generate`.

    Returns:
        Per prompt "token_ids", "text", "finish_reason", "stop_reason" and "meta", all of SGLang's `meta_info`.
    """
    given = params if isinstance(params, list) else [params or {}] * len(prompts)
    requested = [{"temperature": 0.0, "max_new_tokens": 40, **own} for own in given]
    what = {"prompt": prompts} if isinstance(prompts[0], str) else {"input_ids": prompts}
    return [described(output) for output in engine.generate(sampling_params=requested, **what, **options)]


def described(output: dict[str, Any]) -> dict[str, Any]:
    """Return what one answer holds."""
    meta = output["meta_info"]
    reason = meta["finish_reason"]
    return {
        "token_ids": list(output["output_ids"]),
        "text": output.get("text"),
        "finish_reason": reason["type"],
        "stop_reason": reason.get("matched"),
        "meta": json.loads(json.dumps(meta, default=str)),
    }


def flush(engine: Any, most_tries: int = 1000) -> bool:
    """Empty the prefix cache; return whether it was.  With overlap a last step may still run when answers are there."""
    for _ in range(most_tries):
        if engine.flush_cache().success:
            return True
        time.sleep(0.01)
    return False


def facts(scheduler: Any) -> dict[str, Any]:
    """Return what SGLang has decided to run, by name."""
    from sglang.srt.runtime_context import get_spec

    worker = scheduler.draft_worker
    return {
        "overlap": bool(scheduler.enable_overlap),
        "algorithm": get_spec().speculative_algorithm,
        "topk": get_spec().speculative_eagle_topk,
        "worker": None if worker is None else type(worker).__qualname__,
    }
