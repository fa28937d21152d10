"""Functions that run in a scheduler's process and change what is drafted and verified there, or what becomes of it.

`restore` undoes them all.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from specplug.steps.tracer import StepTracer
from specplug.trace import TraceWriter
from specplug.types.step import StepCost

SEEN: list[dict[str, Any]] = []
"""Of each verification that was watched, per row: "tokens" of its nodes; "parents", of each node -1 or the node that it
hangs on; "kept", how many tokens came out of it; "requests", their ids."""

_PLANTED: list[tuple[Any, str, Any]] = []


def put(where: Any, name: str, value: Any) -> Any:
    """Replace an attribute until `restore`; return what it was."""
    was = getattr(where, name)
    _PLANTED.append((where, name, was))
    setattr(where, name, value)
    return was


def restore(scheduler: Any) -> int:
    """Undo everything; return how much it was."""
    count = len(_PLANTED)
    while _PLANTED:
        setattr(*_PLANTED.pop())
    return count


def trace(scheduler: Any, path: str) -> None:
    """Let the draft stage write a trace."""
    stage = scheduler.draft_worker.drafting.stage
    put(stage, "tracer", StepTracer(TraceWriter(path), stage.metrics.count_fault))
    put(stage, "has_observers", True)


def watch(scheduler: Any) -> None:
    """Begin to fill `SEEN`."""
    import sglang.srt.speculative.eagle_utils as module

    def sample(verify_input: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(verify_input, batch, *args, **kwargs)
        links = (verify_input.retrieve_next_token.tolist(), verify_input.retrieve_next_sibling.tolist())
        parents = [parents_of(child, sibling) for child, sibling in zip(*links, strict=True)]
        tokens = verify_input.draft_token.view(len(parents), -1).tolist()
        requests = [req.rid for req in batch.reqs]
        SEEN.append({"tokens": tokens, "parents": parents, "kept": found[1].tolist(), "requests": requests})
        return found

    SEEN.clear()
    original = put(module, "eagle_sample", sample)
    watch_plain_steps(scheduler)


def watch_plain_steps(scheduler: Any) -> None:
    """Note steps without drafts, whose only node is the newest token."""
    worker = scheduler.draft_worker

    def decode(batch: Any) -> Any:
        last = worker.drafting.table.tokens[batch.req_pool_indices, batch.seq_lens].tolist()
        result = original(batch)
        rows = {"parents": [[-1] for _ in last], "kept": [1 for _ in last]}
        SEEN.append({"tokens": [[token] for token in last], **rows, "requests": [req.rid for req in batch.reqs]})
        return result

    original = put(worker.plain_steps, "decode", decode)


def verify_always(scheduler: Any) -> None:
    """Steps without drafts verify the newest token, as where SGLang's own decoding cannot run."""
    put(scheduler.draft_worker, "decodes_plainly", False)


def parents_of(child: list[int], sibling: list[int]) -> list[int]:
    """Return of each node the one that it hangs on, or -1, from first children and next siblings."""
    parents = [-1] * len(child)
    for parent, node in enumerate(child):
        while node != -1:
            parents[node], node = parent, sibling[node]
    return parents


def seen(scheduler: Any) -> list[dict[str, Any]]:
    """Return what was seen since `watch`."""
    return list(SEEN)


def accept_lightly(scheduler: Any) -> None:
    """The mistake: drafts are accepted with twice the target's probability."""
    import sglang.srt.speculative.eagle_utils as module

    def coins(**given: Any) -> Any:
        each, last = original(**given)
        return each / 2, last

    original = put(module, "_verify_coins", coins)


def verify_as_without_kernels(scheduler: Any) -> None:
    """SGLang's verification decides as on this CPU, where the plug-in of these tests lets it sample as on a GPU."""
    import sglang.srt.speculative.eagle_utils as module
    from specplug_test_sglang_cpu.sampling import verifies_greedily_here

    put(module, "_verify_uses_greedy", verifies_greedily_here())


def be_deterministic(scheduler: Any, really: bool) -> None:
    """Draw by seeds or not, as `--enable-deterministic-inference` sets it up where attention is deterministic."""
    from sglang.srt.runtime_context import get_context

    restore(scheduler)
    get_context().override("specplug.test", enable_deterministic_inference=really)
    scheduler.tp_worker.model_runner.sampler.enable_deterministic = really


def plan(scheduler: Any, draft_lengths: list[int]) -> None:
    """Let the policy, which has to be `ladder`, plan other draft lengths."""
    planner = scheduler.draft_worker.drafting.step_planner.stage._planner
    put(planner, "_options", planner._options.model_copy(update={"draft_lengths": tuple(draft_lengths)}))


def cost(scheduler: Any, free: int, each: float) -> None:
    """Tell the policy that a step's tokens beyond the first `free` ones cost so many plain steps each, and no times."""
    planner = scheduler.draft_worker.drafting.step_planner
    original = planner.launch
    put(planner, "launch", lambda *args, **kwargs: original(*args, **{**kwargs, "timed": False}))
    lengths = range(planner.caps.max_draft_length + 1)
    sizes = [(rows, rows * (length + 1), length) for rows in (1, 2, 4, 8, 16, 32, 64) for length in lengths]
    planner.stage.calibrate(
        [StepCost(rows, tokens, 0, length, 1.0 + each * max(0, tokens - free)) for rows, tokens, length in sizes]
    )


def skip_drafts(scheduler: Any, steps: int | None = None) -> None:
    """Plan no drafts for so many steps; without a number, for two of three."""
    drafting = scheduler.draft_worker.drafting
    skips = itertools.cycle([True, True, False]) if steps is None else iter([True] * steps)

    def plan(reqs: Any) -> int:
        planned: int = original(reqs)
        return 0 if next(skips, False) else planned

    original = put(drafting, "plan", plan)


def mask_as_on_gpus(scheduler: Any) -> None:
    """The worker builds masks of the whole text, sized by lengths that the host knows."""
    import specplug_sglang.verification.attention as module
    from specplug_sglang.verification.trees import chain_sees, whole_mask

    def mask(batch: Any, nodes: Any, *_: Any, **__: Any) -> torch.Tensor:
        sees = chain_sees(*nodes.tokens.shape, nodes.tokens.device) if nodes.sees is None else nodes.sees
        return whole_mask(sees, batch.seq_lens, int(batch.seq_lens.sum()))

    put(module, "mask_of", mask)
