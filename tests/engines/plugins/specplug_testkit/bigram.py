"""A sound device proposer: no state, no read-back, every row on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.types.draft import NO_TOKEN
from specplug.types.step import Draft, EngineBatch


class Bigram(Proposer):
    """Drafts what followed the newest earlier occurrence of the last token."""

    confidence = 0.5

    def __init__(self, context: PluginContext) -> None:
        self.context = context

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        if not batch.batch_size or not draft.draft_length:
            return
        tokens = batch.tokens.index_select(0, batch.rows)  # [B, L]
        lengths = batch.lengths.long()[:, None]
        last = tokens.gather(1, (lengths - 1).clamp(min=0))
        places = torch.arange(tokens.shape[1], device=tokens.device)
        earlier = (tokens == last) & (places < lengths - 1)
        for barrier in batch.barriers:  # a slice of zeros: nothing is copied from the host
            earlier[barrier.row, : barrier.stop] = False
        begin = torch.where(earlier, places + 1, 0).amax(1, keepdim=True)  # 0: none
        index = begin + torch.arange(draft.draft_length, device=tokens.device)
        inside = (begin > 0) & (index < lengths) & (index - begin < limits[:, None])
        drafted = tokens.gather(1, index.clamp(max=tokens.shape[1] - 1))
        draft.token_ids.copy_(torch.where(inside, drafted, NO_TOKEN))
        draft.confidence.copy_(torch.where(inside, self.confidence, 0.0))
        draft.lengths.copy_(inside.sum(1))
        draft.source.copy_(torch.where(inside, 0, -1))
