"""Gated delta nets (Qwen3-Next): vLLM's code for GPUs, on kernels in plain torch that roll back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from specplug_test_recurrent.kernels import NULL_BLOCK


def install(conv_step: Any) -> None:
    """Let layers run the code for GPUs; `conv_step` is their convolution while drafts are verified."""
    from vllm.model_executor.layers.mamba.gdn import qwen_gdn_linear_attn as module

    module.causal_conv1d_update = conv_step
    module.fused_sigmoid_gating_delta_rule_update = delta_step
    module.fused_recurrent_gated_delta_rule_packed_decode = packed_step
    module.fused_post_conv_prep = split
    module.fla_chunk_gated_delta_rule = delta_prefill
    module.QwenGatedDeltaNetAttention.forward_cpu = module.QwenGatedDeltaNetAttention.forward_cuda
    module.QwenGatedDeltaNetAttention._warmup_prefill_kernels = lambda *args: None


def delta_step(
    *,
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    ssm_state_indices: Tensor,
    num_accepted_tokens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Advance each row's state from the one after its last accepted token; keep one after every token.

    Of N tokens of R rows: a, b [N, HV], q, k [1, N, H, K], v [1, N, HV, V]; states [S, HV, V, K] by block, blocks
    [R, 1 + K], or [R] where nothing is drafted; accepted tokens [R], the bonus included.
    """
    out = torch.zeros_like(v)
    decay, beta = gates(A_log, a, b, dt_bias)
    starts = cu_seqlens.tolist()
    state = initial_state
    for row in range(len(starts) - 1):
        start, stop = starts[row : row + 2]
        blocks = ssm_state_indices[row].reshape(-1).long()
        if start == stop or int(blocks[0]) == NULL_BLOCK:
            continue
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[row])
        now = state[blocks[accepted - 1]].clone()
        state[blocks] = torch.nan
        for number, token in enumerate(range(start, stop)):
            now, out[0, token] = advance(
                now,
                normalize(q[0, token], dim=-1),
                normalize(k[0, token], dim=-1),
                v[0, token],
                decay[token],
                beta[token],
            )
            state[blocks[number]] = now
    return out, state


def packed_step(
    *, mixed_qkv: Tensor, initial_state: Tensor, out: Tensor, ssm_state_indices: Tensor, **given: Any
) -> None:
    """Advance rows of one token, convolved to [R, 2 * H * K + HV * V], where nothing is drafted."""
    heads, value, key = initial_state.shape[1:]
    size = (mixed_qkv.shape[1] - heads * value) // 2
    q, k, v = mixed_qkv.split([size, size, heads * value], 1)
    count = len(mixed_qkv)
    out[:, 0] = delta_step(
        q=q.reshape(1, count, -1, key),
        k=k.reshape(1, count, -1, key),
        v=v.reshape(1, count, heads, value),
        initial_state=initial_state,
        cu_seqlens=torch.arange(count + 1),
        ssm_state_indices=ssm_state_indices,
        **given,
    )[0][0]


def delta_prefill(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial_state: Tensor, cu_seqlens: Tensor, **_: Any
) -> tuple[Tensor, Tensor]:
    """Read texts that lie one after the other, q and k normalized; return outputs and last states [R, HV, V, K]."""
    out = torch.zeros_like(v)
    last = initial_state.clone()
    starts = cu_seqlens.tolist()
    for row in range(len(starts) - 1):
        for token in range(*starts[row : row + 2]):
            last[row], out[0, token] = advance(
                last[row].clone(), q[0, token], k[0, token], v[0, token], g[0, token].exp(), beta[0, token]
            )
    return out, last


def advance(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Take a state [HV, V, K] over one token, q and k [H, K] normalized; return the next one and the output [HV, V]."""
    q, k = (x.repeat_interleave(len(v) // len(x), 0) for x in (q, k))
    state = state * decay[:, None, None]
    delta = (v - (state * k[:, None]).sum(-1)) * beta[:, None]
    state = state + delta[:, :, None] * k[:, None]
    return state, (state * q[:, None]).sum(-1) * q.shape[-1] ** -0.5


def gates(A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return decay and beta, [N, HV] each."""
    return (-A_log.exp() * softplus(a + dt_bias)).exp(), b.sigmoid()


def split(
    *,
    conv_output: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    num_k_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    **_: Any,
) -> tuple[Tensor, ...]:
    """Return q and k [N, H, K], normalized, v [N, HV, V], and g (the decay's logarithm) and beta [N, HV]."""
    size = num_k_heads * head_k_dim
    q, k, v = conv_output.split([size, size, conv_output.shape[1] - 2 * size], 1)
    q, k = (normalize(x.reshape(len(x), num_k_heads, head_k_dim), dim=-1) for x in (q, k))
    decay, beta = gates(A_log, a, b, dt_bias)
    return q, k, v.reshape(len(v), -1, head_v_dim), decay.log(), beta
