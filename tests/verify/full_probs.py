"""The reference of `specplug.verify.draft_distribution`: the distribution of every draft token, in full."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.types.step import Draft
from specplug.verify.draft_distribution import column_probs, scattered, was_drawn


def full_probs(draft: Draft, temperature: Tensor, vocab_size: int) -> Tensor:
    """Return [B, N, V] float64, the distribution of every token over the target's vocabulary, one-hot drafts included.

    Entries beyond a row's length are undefined.
    """
    one_hot = torch.zeros(*draft.token_ids.shape, vocab_size, dtype=torch.float64, device=draft.device)
    one_hot.scatter_(2, draft.token_ids.clamp(0, vocab_size - 1).long()[:, :, None], 1.0)
    columns = column_probs(draft, temperature)
    if columns is None:
        return one_hot
    return torch.where(
        was_drawn(draft, temperature)[:, :, None], scattered(columns, draft.draft_vocab, vocab_size), one_hot
    )
