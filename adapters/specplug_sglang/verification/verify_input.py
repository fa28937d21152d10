"""SGLang's verification input (`NgramVerifyInput`): the nodes to verify, and the tensors that attention needs."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from torch import Tensor

from specplug_sglang.verification.attention import mask_of
from specplug_sglang.verification.trees import Accepted, Nodes


def verify_input(batch: Any, nodes: Nodes, attention: Any, *, trees: bool, max_length: int) -> NgramVerifyInput:
    """Build the input for B rows of n nodes, after texts whose tokens are cached except the last.

    Args:
        batch: a decoding `ScheduleBatch`.
        nodes: the nodes to verify.
        attention: the backend that will attend.
        trees: whether the backend was built for trees.
        max_length: the longest text.
    """
    rows, n = nodes.tokens.shape
    return NgramVerifyInput(
        draft_token=nodes.tokens.flatten(),
        custom_mask=mask_of(batch, nodes, attention, trees=trees, max_length=max_length),
        positions=nodes.positions.flatten(),
        retrieve_index=torch.arange(rows * n, device=nodes.tokens.device).view(rows, n),
        retrieve_next_token=nodes.child,
        retrieve_next_sibling=nodes.sibling,
        draft_token_num=n,
        new_seq_lens=batch.seq_lens,
    )


def relayed(accepted: Accepted, accept_lens: Tensor) -> NgramVerifyInput:
    """Build the input that carries a step's results to the next one, which needs only the last token of each row."""
    return NgramVerifyInput(
        draft_token_num=1,
        new_seq_lens=accepted.new_seq_lens,
        accept_tokens=accepted.last,
        accept_lens=accept_lens,
    )


def prepare(batch: Any, spec_info: NgramVerifyInput) -> None:
    """Turn a decoding batch into a verifying one; SGLang restores it after the step."""
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
    from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify

    n = spec_info.draft_token_num
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    batch.input_ids = spec_info.draft_token
    batch.out_cache_loc = assign_extend_cache_locs_func(
        req_pool_indices=batch.req_pool_indices,
        req_to_token=batch.req_to_token_pool.req_to_token,
        start_offset=batch.seq_lens,
        end_offset=batch.seq_lens + n,
        batch_size=len(batch.reqs),
        draft_token_num=n,
        device=spec_info.draft_token.device,
    )
    prepare_mamba_track_for_verify(batch)
    batch.spec_info = spec_info
