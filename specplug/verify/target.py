"""The target's distribution of a request's next token, from logits and sampling parameters.

The order and the treatment of ties are those of the Hugging Face transformers warpers, which `model.generate` applies:
temperature, then top-k, then top-p, then min-p, each applied to the distribution that the one before it left.
"""

from __future__ import annotations

import torch
from torch import Tensor

OFF = -torch.inf  # the logit of a token that cannot be drawn
_TINY = 1e-20  # dividing float32 logits by a lower temperature may overflow


def target_probs(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Return the distribution of the next token at each position.

    Tokens whose logit is -inf (grammar masks, bad words) keep probability 0.  Top-k keeps all tokens that tie with the
    k-th largest logit; of tokens that tie at the edge of top-p, those with the larger ids stay.  Reads nothing back to
    the host.

    Args:
        logits: [B, ..., V] floating point; float64 is computed in float64, everything else in float32.
        temperature: [B]; 0 is greedy: probability 1 for the largest logit, and for the smallest id if several tie.
        top_k: [B] int64; 0 is off.  None: off in all rows.
        top_p: [B] in (0, 1]; 1 is off.
        min_p: [B] in [0, 1]; 0 is off.

    Returns:
        [B, ..., V] float64 for float64 logits, else float32; each row sums to 1.
    """
    logits = logits if logits.dtype is torch.float64 else logits.float()

    def per_row(parameter: Tensor) -> Tensor:
        return parameter.reshape(-1, *[1] * (logits.ndim - 1))

    greedy = per_row(temperature) == 0
    scaled = _scaled(logits, torch.where(greedy, 1.0, per_row(temperature)).to(logits.dtype))
    if top_k is not None or top_p is not None:
        scaled = _keep_largest(
            scaled, None if top_k is None else per_row(top_k), None if top_p is None else per_row(top_p)
        )
    probs = scaled.softmax(-1)
    if min_p is not None:
        floor = per_row(min_p).to(probs.dtype) * probs.amax(-1, keepdim=True)
        probs = scaled.masked_fill(probs < floor, OFF).softmax(-1)
    return torch.where(greedy, _one_hot_of_largest(logits), probs)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide by the temperature; at tiny temperatures subtract the largest logit first, so that it stays finite.

    Other rows are divided directly, like the warper does: a subtraction rounds, and may create ties.
    """
    largest = logits.amax(-1, keepdim=True)
    return (logits - torch.where(temperature < _TINY, largest, 0.0)) / temperature


def _keep_largest(scaled: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Turn off every token outside the top k and, of the rest, every token outside the top p."""
    vocab = scaled.shape[-1]
    ascending, order = scaled.sort(dim=-1, stable=True)
    if top_k is not None:
        kept = torch.where(top_k > 0, top_k.clamp(max=vocab), vocab)
        threshold = ascending.gather(-1, (vocab - kept).expand(*scaled.shape[:-1], 1))
        scaled = scaled.masked_fill(scaled < threshold, OFF)
        ascending = ascending.masked_fill(ascending < threshold, OFF)
    if top_p is not None:
        # 1 - top_p in float64, as Python computes it for the warper: in float32 it is off by several units
        tail = (1.0 - top_p.double()).to(scaled.dtype)
        drop = (ascending.softmax(-1).cumsum(-1) <= tail) & (top_p < 1)
        drop[..., -1:] = False
        scaled = scaled.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), OFF)
    return scaled


def _one_hot_of_largest(logits: Tensor) -> Tensor:
    return torch.zeros_like(logits).scatter(-1, logits.argmax(-1, keepdim=True), 1.0)
