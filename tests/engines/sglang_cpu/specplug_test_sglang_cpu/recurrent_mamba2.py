"""Mamba-2 layers (Nemotron-H, Falcon-H1) in plain torch; SGLang rolls their states back after verification.

A state is [H, P, N]: heads, their size, and what is remembered of each.  Verification leaves it as it is and writes the
one after each of its tokens into a buffer; SGLang copies back the one after the last accepted token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from specplug_test_sglang_cpu import recurrent

_MIXER = "sglang.srt.layers.attention.mamba.mamba.MambaMixer2.__init__"
_SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton.fused_mamba_state_scatter_with_mask"


def install(replace: Any, after: Any) -> None:
    """Give SGLang what it launches on a GPU; `replace` and `after` take the path of a function and another one."""
    replace(_SCATTER, recurrent.take_back)
    after(_MIXER, name_kernels)


def name_kernels(result: None, *args: Any, **kwargs: Any) -> None:
    """Name the kernels in the module of the layers, which imports some of them on GPUs alone."""
    from sglang.srt.layers.attention.mamba import mamba

    mamba.causal_conv1d_fn = mamba.causal_conv1d_fn_triton = recurrent.read
    mamba.causal_conv1d_update = mamba.causal_conv1d_update_triton = recurrent.extend
    mamba.mamba_chunk_scan_combined = read
    mamba.selective_state_update = extend


def read(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor,
    dt_bias: Tensor,
    initial_states: Tensor | None,
    cu_seqlens: Tensor,
    out: Tensor,
    **others: Any,
) -> tuple[None, Tensor, None]:
    """Read texts that lie one after the other; return each one's last state, [texts, H, P, N], in the middle.

    Args:
        x: [1, tokens, H, P]; out likewise.
        dt: [1, tokens, H].
        A, D, dt_bias: [H].
        B, C: [1, tokens, G, N]; G divides H.
        initial_states: [texts, H, P, N], or None for new texts alone.
        cu_seqlens: [texts + 1], where texts begin and end.
    """
    bounds, heads, size = cu_seqlens.tolist(), *x.shape[2:]
    states = (
        x.new_zeros(len(bounds) - 1, heads, size, B.shape[-1]) if initial_states is None else initial_states.clone()
    )
    for text in range(len(states)):
        for token in range(*bounds[text : text + 2]):
            steps = softplus(dt[0, token] + dt_bias)[:, None].expand(heads, size)
            states[text], out[0, token] = advance(
                states[text], x[0, token], steps, A[:, None, None], B[0, token], C[0, token], D[:, None]
            )
    return None, states, None


def extend(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    dt_bias: Tensor,
    state_batch_indices: Tensor,
    out: Tensor,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    **others: Any,
) -> None:
    """Advance the states of R requests by one token, or by n of them.

    Args:
        state: [slots, H, P, N].
        x, dt, out: [R, H, P], or [R, n, H, P].
        A: [H, P, N].
        B, C: [R, G, N], or [R, n, G, N].
        D, dt_bias: [H, P].
        state_batch_indices: [R], each request's slot.
        disable_state_update: leave `state` as it is.
        intermediate_states_buffer: [rows, most tokens, H, P, N]; becomes the state after each token.
        intermediate_state_indices: [R], each request's row in it.
    """
    x, dt, B, C, out = (part if x.dim() == 4 else part[:, None] for part in (x, dt, B, C, out))
    for row, slot in enumerate(state_batch_indices.tolist()):
        now = state[slot]
        for token in range(x.shape[1]):
            steps = softplus(dt[row, token] + dt_bias)
            now, out[row, token] = advance(now, x[row, token], steps, A, B[row, token], C[row, token], D)
            if intermediate_states_buffer is not None and intermediate_state_indices is not None:
                intermediate_states_buffer[int(intermediate_state_indices[row]), token] = now
        if not disable_state_update:
            state[slot] = now


def advance(
    state: Tensor, x: Tensor, steps: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor
) -> tuple[Tensor, Tensor]:
    """Take a state [H, P, N] over one token; return the next one and the output [H, P].

    Args:
        x, steps: [H, P].
        A: [H, P, N], or with dimensions of 1.
        B, C: [G, N].
        D: [H, P], or with dimensions of 1.
    """
    B, C = (part.repeat_interleave(len(x) // len(part), 0)[:, None] for part in (B, C))
    state = state * torch.exp(steps[..., None] * A) + (steps * x)[..., None] * B
    return state, (state * C).sum(-1) + D * x
