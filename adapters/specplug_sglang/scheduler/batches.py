"""SGLang's batches as a step needs them: to draft for, with nodes to verify, or for SGLang's own decoding.

Without drafts penalties, min_p, seeds, grammars and log probabilities are SGLang's.  What is left to do is what its
scheduler expects of a speculative worker: it reserves cache for drafts beforehand and learns text lengths from results.
SGLang restores a batch after the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specplug.steps.rows import Rows
from specplug_sglang.config import resolved_args
from specplug_sglang.verification.trees import TokenTable, Verification


class Decoding(NamedTuple):
    """A batch of B requests that decodes.

    Attributes:
        reqs: the requests.
        rows: their rows, kept from step to step.
        slots: [B] int64, their rows in SGLang's request pool.
        before: [B] int64, cached tokens of each, which lack the newest.
        is_constrained: whether a request has a grammar that has accepted its newest token.
        engine_ids: [B, G] int64, the draft of SGLang's own drafter, contiguous, -1 after its end; None if it has not.
    """

    reqs: Sequence[Any]
    rows: Rows
    slots: Tensor
    before: Tensor
    is_constrained: bool
    engine_ids: Tensor | None = None


def prepare(batch: Any, verified: Verification, mask: Tensor | None, *, keeps_states: bool) -> None:
    """Turn a decoding `ScheduleBatch` into one that verifies, with attention's `mask`.

    `keeps_states`: whether the target has recurrent layers.
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    nodes = verified.nodes
    rows, n = nodes.tokens.shape
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    batch.input_ids = nodes.tokens.flatten()
    batch.out_cache_loc = verified.cached
    if keeps_states:
        from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify

        prepare_mamba_track_for_verify(batch)
    batch.spec_info = NgramVerifyInput(
        draft_token=batch.input_ids,
        custom_mask=mask,
        positions=nodes.positions.flatten(),
        retrieve_index=_indices(rows, n, nodes.tokens.device),
        retrieve_next_token=nodes.child,
        retrieve_next_sibling=nodes.sibling,
        draft_token_num=n,
        new_seq_lens=batch.seq_lens,
    )


@lru_cache(maxsize=64)
def _indices(rows: int, n: int, device: torch.device) -> Tensor:
    """Return the index of each of n nodes of each row among all, [B, n] int64, which SGLang only reads."""
    return torch.arange(rows * n, device=device).view(rows, n)


class PlainSteps:
    """Runs steps of the target that emit one token per request."""

    def __init__(self, target_worker: Any, table: TokenTable) -> None:
        self._target = target_worker
        self._table = table
        slots = table.tokens.shape[0]
        device = table.tokens.device
        self._ones = torch.ones(slots, dtype=torch.int32, device=device)
        self._ones_on_host = torch.ones(slots, dtype=torch.int32)

    def decode(self, batch: Any) -> Any:
        """Decode one token per request; returns SGLang's result."""
        slots = batch.req_pool_indices
        before = batch.seq_lens
        batch.input_ids = self._table.tokens[slots, before].long()  # the newest tokens
        batch.out_cache_loc = batch.req_to_token_pool.req_to_token[slots, before].long()
        batch.seq_lens = before + 1
        if batch.seq_lens_cpu is not None:
            batch.seq_lens_cpu = batch.seq_lens_cpu + 1
        batch.seq_lens_sum = None  # SGLang sums them again if the host knows them
        batch.spec_info = None
        result = self._target.forward_batch_generation(batch)
        if not batch.sampling_info.is_all_greedy:  # rank 0's proposers may have drawn from the generators that sample
            from sglang.srt.runtime_context import get_parallel

            get_parallel().tp_group.broadcast(result.next_token_ids, src=0)
        logits = result.logits_output
        if batch.return_logprob:  # by request and token, as in results of verification
            logits.next_token_logprobs = logits.next_token_logprobs[:, None]
        tokens = result.next_token_ids.to(torch.int32)
        self._table.append_one(batch.req_pool_indices, batch.seq_lens, tokens)
        return self.completed(result, tokens, batch.seq_lens)

    def completed(self, result: Any, tokens: Tensor, new_seq_lens: Tensor) -> Any:
        """Complete SGLang's result of a prefill or of decoding, which emitted `tokens` [B] int32.

        `new_seq_lens` [B] int64 are the cached tokens after the step.
        """
        from sglang.srt.speculative.ngram_info import NgramVerifyInput

        rows = len(tokens)
        result.accept_lens = result.cap_lens = self._ones_on_host[:rows]
        result.new_seq_lens = new_seq_lens
        result.next_draft_input = NgramVerifyInput(
            draft_token_num=1, new_seq_lens=new_seq_lens, accept_tokens=tokens, accept_lens=self._ones[:rows]
        )
        result.speculative_num_draft_tokens = result.speculative_output_stride = 1
        return result


def decodes_plainly(model_config: Any, server_args: Any) -> bool:
    """Return whether a speculative worker's batches have all that SGLang's own decoding needs.

    Where they have not, steps without drafts verify the newest token alone.  Rotary positions in three dimensions are
    computed from text lengths on the host, which overlapped speculation does not have.  States of recurrent layers are
    kept for the prefix cache in slots that SGLang's scheduler chooses in one way for verification, in another way
    for decoding.
    """
    from sglang.srt.arg_groups.model_override_base import mamba_extra_buffer_of

    return not (model_config.model_is_mrope or mamba_extra_buffer_of(resolved_args(server_args)))
