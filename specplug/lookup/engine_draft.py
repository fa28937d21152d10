"""Which rows begin with the draft of the engine's own drafter, and which with lookup's.

Lookup continues the engine's tokens, or its own draft stands instead (Arctic Inference, arXiv 2507.17133, joins suffix
decoding and a draft head likewise).  Which one does is decided by what was learnt before, never by the engine's newest
tokens: tokens that are drawn from a distribution keep it only if they are not selected by value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug.lookup import layout as at
from specplug.lookup.counts import TOKENS_END


def standing(state: at.State, slots: Tensor, limits: Tensor, engine_ids: Tensor, confidence: Tensor) -> Tensor:
    """Return [B] bool: whether the engine's tokens are worth more than as many of lookup's own draft.

    Args:
        state: see `layout.State`.
        slots: [B] int64.
        limits: [B] int32.
        engine_ids: [B, G], the engine's draft, negative after its end.
        confidence: [B, K] float32, of lookup's own draft, 0 for padding.
    """
    length = min(engine_ids.shape[1], confidence.shape[1])
    places = torch.arange(length, device=slots.device)
    is_there = (engine_ids[:, :length] >= 0) & (places < limits[:, None])
    is_taken = is_there.cumprod(1, dtype=torch.int32)
    by_engine = (chances(state, slots)[:, :length].cumprod(1) * is_taken).sum(1)
    by_lookup = (confidence[:, :length].cumprod(1) * is_taken).sum(1)
    return by_engine > by_lookup


def chances(state: at.State, slots: Tensor) -> Tensor:
    """Return [B, G] float32: the probability that the engine's token at a position is right, if those before it are."""
    own: Any = at.own_rows(state)[slots].float()
    common = state.counts[TOKENS_END : TOKENS_END + own.shape[1]].float()
    rate = common[:, 0] / common[:, 1]
    tries = at.COMMON_TRIES * at.UNIT
    found: Tensor = (own[:, :, 0] + tries * rate) / (own[:, :, 1] + tries)
    return found
