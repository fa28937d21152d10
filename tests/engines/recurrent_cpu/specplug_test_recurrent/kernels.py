"""The stand-ins; see the package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NULL_BLOCK = 0
"""The block of rows that only fill up a batch."""


def install() -> None:
    """Replace the decode kernels of short convolutions, of Mamba-2 and of gated delta nets."""
    from vllm.model_executor.layers.mamba import mamba_mixer2, short_conv

    from specplug_test_recurrent import gated_delta

    baseline_conv = mamba_mixer2.causal_conv1d_update
    baseline_scan = mamba_mixer2.selective_state_update

    def conv(x: Tensor, state: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("num_accepted_tokens") is not None:
            return conv_step(x, state, weight, *args, **kwargs)
        return baseline_conv(x, state, weight, *args, **kwargs)

    def scan(state: Tensor, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_accepted_tokens") is None:
            baseline_scan(state, *args, **kwargs)
        else:
            scan_step(baseline_scan, state, *args, **kwargs)

    mamba_mixer2.causal_conv1d_update = short_conv.causal_conv1d_update = conv
    mamba_mixer2.selective_state_update = scan
    baseline_prefill = mamba_mixer2.mamba_chunk_scan_combined_varlen

    def prefill(*args: Any, **kwargs: Any) -> Tensor:
        chunked = kwargs.get("return_intermediate_states")
        return scan_chunks(baseline_prefill, *args, **kwargs) if chunked else baseline_prefill(*args, **kwargs)

    mamba_mixer2.mamba_chunk_scan_combined_varlen = prefill
    short_conv.ShortConv.forward_native = short_conv.ShortConv.forward_cuda
    gated_delta.install(conv)
    fix_rotary()


def fix_rotary() -> None:
    """Hand queries to vLLM's rotary embedding for CPUs without a dimension of heads, with which it turns some twice."""
    from vllm import _custom_ops

    baseline = _custom_ops.rotary_embedding

    def rotary_embedding(positions: Tensor, query: Tensor, key: Tensor | None, *args: Any, **kwargs: Any) -> None:
        baseline(positions, query.flatten(1), None if key is None else key.flatten(1), *args, **kwargs)

    _custom_ops.rotary_embedding = rotary_embedding


def conv_step(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: Tensor,
    num_accepted_tokens: Tensor,
    query_start_loc: Tensor,
    **_: Any,
) -> Tensor:
    """Convolve each row's tokens, of x [N, D], with the window that ends at its last accepted token.

    The state [S, D, W - 1 + K] has by block what was convolved before, then the drafts of the step before; of the
    blocks [B, 1 + K] the first column counts; accepted tokens [B] include the bonus.
    """
    out = torch.empty_like(x)
    before = weight.shape[1] - 1
    starts = query_start_loc.tolist()
    blocks = conv_state_indices.reshape(len(conv_state_indices), -1)[:, 0].tolist()
    for row, accepted in enumerate(num_accepted_tokens.tolist()):
        block = blocks[row]
        start, stop = starts[row : row + 2]
        if block == NULL_BLOCK or start == stop:
            continue
        window = torch.cat([state[block, :, accepted - 1 : accepted - 1 + before], x[start:stop].T], dim=1)
        convolved = torch.nn.functional.conv1d(window[None], weight[:, None], bias, groups=len(weight))[0]
        out[start:stop] = (torch.nn.functional.silu(convolved) if activation else convolved).T
        state[block] = torch.nan
        state[block, :, : window.shape[1] - 1] = window[:, 1:]
    return out


def scan_step(
    baseline: Any,
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    *,
    state_batch_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    out: Tensor,
    dst_state_batch_indices: Tensor,
    **kwargs: Any,
) -> None:
    """Advance each row's state from the one after its last accepted token; keep one after every token.

    `baseline` is vLLM's kernel, which advances states [S, H, P, N] by one token; of the blocks [B, 1 + K] column i
    holds the state after token i of the step before; accepted tokens [B] include the bonus.
    """
    starts = cu_seqlens.tolist()
    for row, accepted in enumerate(num_accepted_tokens.tolist()):
        blocks = state_batch_indices[row]
        if int(blocks[0]) == NULL_BLOCK:
            continue
        now = state[int(blocks[accepted - 1])].clone()
        state[blocks.long()] = torch.nan
        for number, token in enumerate(range(*starts[row : row + 2])):
            one = slice(token, token + 1)
            block = blocks[number : number + 1]
            state[int(block)] = now
            baseline(
                state, x[one], dt[one], A, B[one], C[one], D, dt_bias,
                state_batch_indices=block, dst_state_batch_indices=block, out=out[one], **kwargs,
            )  # fmt: skip
            now = state[int(block)].clone()


def scan_chunks(
    baseline: Any,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    cu_chunk_seqlens: Tensor,
    seq_idx: Tensor,
    initial_states: Tensor | None,
    out: Tensor,
    **kwargs: Any,
) -> Tensor:
    """Read texts chunk by chunk, as prefix caching needs it; return the state after each chunk, [chunks, H, P, N].

    `baseline` is vLLM's kernel for CPUs, which returns states after whole texts alone; no chunk holds tokens of two
    texts, and `seq_idx` [chunks] names each one's.
    """
    states: list[Tensor] = []
    texts = seq_idx.tolist()
    bounds = cu_chunk_seqlens.tolist()
    for chunk, text in enumerate(texts):
        here = slice(*bounds[chunk : chunk + 2])
        size = bounds[chunk + 1] - bounds[chunk]
        goes_on = chunk > 0 and texts[chunk - 1] == text
        before = states[-1] if goes_on else None if initial_states is None else initial_states[text : text + 1]
        kwargs |= {"cu_seqlens": torch.tensor([0, size]), "cu_chunk_seqlens": torch.tensor([0, size])}
        kwargs |= {"seq_idx": seq_idx[:1], "last_chunk_indices": torch.tensor([0]), "return_intermediate_states": False}
        states.append(baseline(x[here], dt[here], A, B[here], C[here], initial_states=before, out=out[here], **kwargs))
    return torch.cat(states)
