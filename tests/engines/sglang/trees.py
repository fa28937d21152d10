"""Functions that run in a scheduler's process and change what is drafted and verified there, or what becomes of it.

`restore` undoes them all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

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
    """No mistake: steps without drafts verify the newest token, as where SGLang's own decoding cannot run."""
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


def lose_moves(scheduler: Any) -> None:
    """The mistake: keys and values of accepted drafts stay where the drafts lay."""
    import sglang.srt.speculative.spec_utils as module

    put(module, "move_accept_tokens_to_target_kvcache", lambda *args: None)


def after_preparing(scheduler: Any, change: Callable[[Any, int], None]) -> None:
    """Let `change(batch, nodes per tree)` run on batches that are ready for verification."""
    import specplug_sglang.scheduler.worker as module

    def prepare(batch: Any, *args: Any) -> None:
        original(batch, *args)
        if batch.forward_mode.is_target_verify():
            change(batch, batch.spec_info.draft_token_num)

    original = put(module, "prepare", prepare)


def show_siblings(scheduler: Any) -> None:
    """The mistake: every draft sees all that were put before it, whatever the tree."""

    def change(batch: Any, n: int) -> None:
        chain = torch.ones(n, n, dtype=torch.bool).tril()
        batch.spec_info.custom_mask = chain.expand(len(batch.reqs), n, n).flatten()

    after_preparing(scheduler, change)


def count_in_rows(scheduler: Any) -> None:
    """The mistake: drafts count their places in the row, not in the tree."""

    def change(batch: Any, n: int) -> None:
        places = batch.seq_lens[:, None] + torch.arange(n)
        batch.spec_info.positions = places.flatten().to(batch.spec_info.positions.dtype)

    after_preparing(scheduler, change)


def whole_masks(scheduler: Any, hide: int = 0) -> None:
    """This is no mistake: masks cover the text before the drafts too, as SGLang's n-gram builds them on GPUs.

    Args:
        hide: tokens at the text's begin that drafts do not see; any is the mistake.
    """

    def change(batch: Any, n: int) -> None:
        whole = []
        for before, drafts in zip(batch.seq_lens.tolist(), batch.spec_info.custom_mask.view(-1, n, n), strict=True):
            text = torch.ones(n, before, dtype=torch.bool)
            text[:, :hide] = False
            whole.append(torch.cat([text, drafts], dim=1).flatten())
        batch.spec_info.custom_mask = torch.cat(whole)

    after_preparing(scheduler, change)


def hide_begin(scheduler: Any) -> None:
    """The mistake: a mask of the text before the drafts is short by one."""
    whole_masks(scheduler, hide=1)


def sharpen(scheduler: Any) -> None:
    """The mistake: verification samples at another temperature than the requested one."""
    import sglang.srt.speculative.eagle_utils as module

    def softmax(logits: Any, temperatures: Any) -> Any:
        return original(logits, temperatures=0.7 * temperatures)

    original = put(module, "sampling_softmax", softmax)


def accept_lightly(scheduler: Any) -> None:
    """The mistake: drafts are accepted with twice the target's probability."""
    import sglang.srt.speculative.eagle_utils as module

    def coins(**given: Any) -> Any:
        each, last = original(**given)
        return each / 2, last

    original = put(module, "_verify_coins", coins)


def plan(scheduler: Any, draft_lengths: list[int]) -> None:
    """Let the policy, which has to be `ladder`, plan other draft lengths."""
    planner = scheduler.draft_worker.drafting.step_planner.stage._planner
    put(planner, "_options", planner._options.model_copy(update={"draft_lengths": tuple(draft_lengths)}))


def counts(scheduler: Any) -> dict[str, Any]:
    """Return what was counted so far: "total", "by_source", "faults"."""
    found: dict[str, Any] = scheduler.draft_worker.drafting.counts.read().as_dict()
    return found


def link_padding(scheduler: Any) -> None:
    """The mistake: the nodes that fill up a row hang below its last draft, one after the other."""

    def change(batch: Any, n: int) -> None:
        child, sibling = batch.spec_info.retrieve_next_token, batch.spec_info.retrieve_next_sibling
        for row in range(len(batch.reqs)):
            parents = parents_of(child[row].tolist(), sibling[row].tolist())
            last = max((node for node, parent in enumerate(parents) if parent >= 0), default=0)
            child[row, last : n - 1] = torch.arange(last + 1, n)

    after_preparing(scheduler, change)


def keep_backend(scheduler: Any) -> None:
    """The mistake: every draft length is verified by what was built for the widest."""
    put(scheduler.draft_worker.draft_lengths, "using", lambda n: nullcontext())


def misplace(scheduler: Any) -> None:
    """The mistake: the table of texts is written one place off."""

    worker = scheduler.draft_worker
    operations = worker._operations

    def append(table: Any, slots: Any, before: Any, *verified: Any) -> Any:
        found = operations.append(table, slots, before + 1, *verified)
        return found._replace(new_seq_lens=found.new_seq_lens - 1)

    put(worker, "_operations", SimpleNamespace(nodes=operations.nodes, append=append))


def mask_as_on_gpus(scheduler: Any) -> None:
    """This is no mistake: the worker builds masks of the whole text, sized by lengths that the host knows."""
    import specplug_sglang.verification.attention as module
    from specplug_sglang.verification.trees import chain_sees, whole_mask

    def mask(batch: Any, nodes: Any, _: int) -> torch.Tensor:
        sees = chain_sees(*nodes.tokens.shape, nodes.tokens.device) if nodes.sees is None else nodes.sees
        return whole_mask(sees, batch.seq_lens, int(batch.seq_lens.sum()))

    put(module, "mask_of", mask)
