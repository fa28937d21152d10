"""SGLang's workers of its own draft models, where specplug's lookup continues their drafts.

A step of n draft tokens lets SGLang's drafter draft k = `engine_tokens` of them, or n if that is less.  Their ids go
with the batch that lookup reads, and its draft, the drafter's tokens and a tail or lookup's own, is what SGLang
verifies: n tokens of each row, of which its draft may have fewer.  The draft model then sees all that was verified, as
after any step, so its key-value cache has what tails added.

SGLang verifies chains of EAGLE and STANDALONE by the target's probabilities alone, without those that the drafter drew
from, so drafts need no distribution.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from sglang.srt.mem_cache import kv_cache_configurator
from sglang.srt.speculative import eagle_worker_v2
from torch import Tensor
from torch.nn.functional import pad

from specplug.seams.seam import hook
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft
from specplug.types.tensors import on_device
from specplug_sglang.scheduler.batches import Decoding
from specplug_sglang.scheduler.engine_workers import PlannedWorker
from specplug_sglang.scheduler.worker import extra_context_len
from specplug_sglang.verification.operations import choose_operations
from specplug_sglang.verification.trees import cut

_workers: WeakKeyDictionary[Any, ExtendedWorker] = WeakKeyDictionary()
"""By the target's worker, the one that drafts for it."""


@functools.cache
def extended(worker: type) -> type:
    """Return SGLang's class of workers with lookup after their drafters."""
    return type(f"Extended{worker.__name__}", (ExtendedWorker, worker), {})


class ExtendedWorker(PlannedWorker):
    """Mixin of SGLang's workers; see `PlannedWorker`.

    Attributes:
        chains: SGLang's parents and order of the nodes of chains, for its largest batch, by draft length.
    """

    draft_worker: Any

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__(server_args, gpu_id, nccl_port, target_worker)
        drafting = self.drafting
        assert drafting.table is not None
        assert drafting.drafts is not None
        self._table = drafting.table
        self._drafts = drafting.drafts
        self._operations = choose_operations(self._table)
        self._decoding: Any = None  # the newest step that decodes
        self._draft: Draft | None = None  # of the newest step, None if lookup could not run
        hook(kv_cache_configurator, "get_req_to_token_extra_context_len", extra_context_len)
        hook(eagle_worker_v2, "build_eagle_verify_input", _build_verify_input)
        _workers[target_worker] = self
        self._shorten_drafts()

    # -- draft lengths ---------------------------------------------------------------------------------------------

    def steps_of(self, length: int) -> int:
        return min(length, self.drafting.caps.engine_tokens)

    def _shorten_drafts(self) -> None:
        """Let SGLang's drafter draft fewer tokens of a chain than are verified, which SGLang itself does for trees."""
        from sglang.srt.runtime_context import get_context

        drafter = self.draft_worker
        caps = self.drafting.caps
        lengths = {length for n in caps.captured_draft_lengths for length in (n, self.steps_of(n))}
        self.chains = {length: self._chain_of(length) for length in lengths}
        drafter._rebuild_topk1_chain_buffers = self._rebuild_chain
        self.speculative_num_steps = drafter.speculative_num_steps = caps.engine_tokens
        get_context().override("specplug", speculative_num_steps=caps.engine_tokens)
        self._rebuild_chain()

    def _chain_of(self, length: int) -> tuple[Tensor, Tensor]:
        """Let SGLang build the nodes of chains; see `chains`."""
        drafter = self.draft_worker
        drafter.speculative_num_steps = length
        drafter.speculative_num_draft_tokens = length + 1
        drafter._rebuild_topk1_chain_buffers()
        drafter.speculative_num_draft_tokens = self.drafting.caps.max_draft_length + 1
        return drafter._topk1_parents_prealloc, drafter._topk1_score_indices_prealloc

    def _rebuild_chain(self) -> None:
        """Stand for SGLang's method, which builds the chain's nodes anew at each change of the draft length."""
        drafter = self.draft_worker
        chain = self.chains[drafter.speculative_num_steps]
        drafter._topk1_parents_prealloc, drafter._topk1_score_indices_prealloc = chain

    # -- steps -----------------------------------------------------------------------------------------------------

    def begin(self, batch: Any, draft_length: int, *, has_grammars: bool) -> None:
        slots = batch.req_pool_indices
        self._decoding = Decoding(batch.reqs, self.drafting.rows, slots, batch.seq_lens, has_grammars)
        self._draft = None
        if not draft_length:
            self._drafts.skip(self._decoding)

    def draft_lengths(self, accept_lens: Tensor) -> Tensor | None:
        return None if self._draft is None else self._draft.lengths

    def continued(self, engine_ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Let lookup continue the drafter's tokens [B, min(k, n)] int64.

        Returns:
            ids [B, n] int64 and lengths [B] of drafts of at most n = `length` tokens; if lookup cannot run, those of
            the drafter alone, which are then counted as steps without drafts.
        """
        drafting = self.drafting
        step = self._decoding
        plan = drafting.step_planner.plan
        missing = drafting.caps.engine_tokens - engine_ids.shape[1]
        padded = pad(engine_ids, (0, missing), value=NO_TOKEN) if missing else engine_ids
        self._draft = self._drafts.propose(step._replace(engine_ids=padded), length, plan)
        if self._draft is not None:
            return self._draft.token_ids.long().clamp_(min=0), self._draft.lengths  # a model embeds the padding, too
        lengths = [min(plan.draft_length_for(req.rid), engine_ids.shape[1]) for req in step.reqs]
        return pad(engine_ids, (0, length - engine_ids.shape[1])), on_device(lengths, torch.int64, engine_ids.device)

    def verify(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Verify drafts, append what the rows emit to their texts, and observe."""
        result = super().verify(batch, *args, **kwargs)
        step = self._decoding
        emitted = result.next_token_ids
        lengths = result.accept_lens
        self._operations.append(self._table, step.slots, step.before, emitted, result.accept_index, lengths)
        if self._draft is not None:
            self._drafts.observe(step, self._draft, lengths)
        return result


def _build_verify_input(
    original: Callable[..., Any],
    batch: Any,
    draft_input: Any,
    parents: Tensor,
    order: Tensor,
    engine_ids: Tensor,
    draft_probs: None,
    *,
    target_worker: Any,
    num_draft_tokens: int,
    **others: Any,
) -> Any:
    """Stand around SGLang's `build_eagle_verify_input`: verify the drafts of `ExtendedWorker.continued`."""
    worker = _workers[target_worker]
    n = num_draft_tokens - 1
    ids, lengths = worker.continued(engine_ids, n)
    nodes = [part[: len(ids)] for part in worker.chains[n]]
    others |= {"target_worker": target_worker, "num_draft_tokens": num_draft_tokens, "num_steps": n}
    verified = original(batch, draft_input, *nodes, ids, draft_probs, **others)
    verified.retrieve_next_token = cut(verified.retrieve_next_token, lengths)
    return verified
