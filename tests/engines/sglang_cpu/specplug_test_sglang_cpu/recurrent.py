"""Short convolutions, whose states SGLang keeps per request and rolls back after verification, in plain torch.

A state is a convolution's last K - 1 inputs, [channels, K - 1].  Verification writes the state after each of its n
tokens into a window of n states; the one after the last accepted token is what SGLang copies back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, silu

_CONVOLUTION = "sglang.kernels.ops.mamba.causal_conv1d_triton"
_SCATTER = "sglang.kernels.ops.mamba.mamba_state_scatter_triton"


def install(replace: Any) -> None:
    """Give SGLang what it launches on a GPU; `replace` takes the path of a function and another one."""
    replace(f"{_CONVOLUTION}.causal_conv1d_fn", read)
    replace(f"{_CONVOLUTION}.causal_conv1d_update", extend)
    replace(f"{_SCATTER}.fused_conv_window_scatter_with_mask", take_back)


def read(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor,
    has_initial_state: Tensor,
    activation: str | None,
    **others: Any,
) -> Tensor:
    """Convolve texts that lie one after the other.

    Args:
        x: [channels, tokens].
        weight: [channels, K].
        bias: [channels].
        conv_states: [slots, channels, K - 1], read where `has_initial_state` [B] and written for each text.
        query_start_loc: [B + 1], where texts begin and end.
        cache_indices: [B], each text's slot.
        activation: None or "silu".
    """
    out = torch.empty_like(x)
    bounds, slots = query_start_loc.tolist(), cache_indices.tolist()
    for row, (slot, goes_on) in enumerate(zip(slots, has_initial_state.tolist(), strict=True)):
        here = slice(bounds[row], bounds[row + 1])
        state = conv_states[slot].to(x.dtype) if goes_on else x.new_zeros(conv_states.shape[1:])
        whole = torch.cat([state, x[:, here]], 1)
        out[:, here] = _convolved(whole, weight, bias, activation)
        conv_states[slot] = whole[:, whole.shape[1] - state.shape[1] :]
    return out


def extend(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """Convolve one token, or n of them, after the states of B requests.

    Args:
        x: [B, channels], or [B, channels, n].
        conv_state: [slots, channels, K - 1]; becomes the state after all n tokens.
        weight: [channels, K].
        bias: [channels].
        activation: None or "silu".
        conv_state_indices: [B], each request's slot.
        intermediate_conv_window: [rows, most tokens, channels, K - 1]; becomes the state after each token.
        intermediate_state_indices: [B], each request's row in it.
    """
    assert conv_state_indices is not None
    tokens = x if x.dim() == 3 else x[:, :, None]
    out = torch.empty_like(tokens)
    kept = conv_state.shape[-1]
    for row, slot in enumerate(conv_state_indices.tolist()):
        whole = torch.cat([conv_state[slot].to(x.dtype), tokens[row]], 1)
        out[row] = _convolved(whole, weight, bias, activation)
        conv_state[slot] = whole[:, whole.shape[1] - kept :]
        if intermediate_conv_window is not None and intermediate_state_indices is not None:
            window = intermediate_conv_window[int(intermediate_state_indices[row])]
            for token in range(tokens.shape[-1]):
                window[token] = whole[:, token + 1 : token + 1 + kept]
    return out if x.dim() == 3 else out[:, :, 0]


def take_back(
    dst: Tensor,
    src: Tensor,
    dst_indices_raw: Tensor,
    step_indices_raw: Tensor,
    src_indices_raw: Tensor | None = None,
) -> None:
    """Copy, of each request, the state after its last accepted token into its slot.

    Args:
        dst: [layers, slots, channels, K - 1].
        src: [layers, rows, most tokens, channels, K - 1].
        dst_indices_raw: [B], each request's slot; negative ones are left out.
        step_indices_raw: [B], the last accepted token; negative ones are left out.
        src_indices_raw: [B], each request's row; None for those in order.
    """
    slots, steps = dst_indices_raw.tolist(), step_indices_raw.tolist()
    rows = range(len(slots)) if src_indices_raw is None else src_indices_raw.tolist()
    for row, slot, step in zip(rows, slots, steps, strict=True):
        if slot >= 0 and step >= 0:
            dst[:, slot] = src[:, row, step]


def _convolved(whole: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return [channels, tokens] of a state and tokens [channels, K - 1 + tokens]."""
    found = conv1d(whole[None], weight[:, None].to(whole.dtype), bias, groups=len(weight))[0]
    if activation is None:
        return found
    if activation != "silu":
        raise NotImplementedError(f"convolutions with activation {activation!r}")
    return silu(found)
