"""A draft model in one file, as a third party would write it: the last token's embedding against those of a vocabulary.

It drafts from a part of the target's vocabulary with honest probabilities, on the device, without reading back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.types.step import Draft, EngineBatch

_WIDTH = 16  # of its embeddings
_SHARPNESS = 3.0  # how far its scores lie apart


def memory(context: PluginContext) -> int:
    """Return how many bytes the table of `TinyModel` takes on the device."""
    size = len(_vocabulary(context))
    return size * size * 4


class TinyModel(Proposer):
    """Draws each token given the one before it, in greedy rows the likeliest.

    Its tables score each token of the draft vocabulary after each, [Vd, Vd]; after other tokens all are
    equally likely.
    """

    def __init__(self, context: PluginContext) -> None:
        self._target_path = context.target_path
        device = context.device
        self.draft_vocab = torch.tensor(_vocabulary(context), device=device)
        embeddings = torch.randn(context.vocab_size, _WIDTH, generator=torch.Generator().manual_seed(12345))
        own = torch.nn.functional.normalize(embeddings.to(device)[self.draft_vocab], dim=-1)
        self._scores = _SHARPNESS * (own @ own.T)  # [Vd, Vd]
        self._column = torch.full((context.vocab_size,), -1, device=device)
        self._column[self.draft_vocab] = torch.arange(len(self.draft_vocab), device=device)
        is_meta = device.type == "meta"
        self._generator = None if is_meta else torch.Generator(device).manual_seed(context.seed + 2)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        greedy = batch.temperature == 0
        temperature = torch.where(greedy, 1.0, batch.temperature)[:, None]
        last = batch.tokens[batch.rows.long(), (batch.lengths.long() - 1).clamp(min=0)].long()
        last = torch.where(batch.lengths > 0, last, 0).clamp(0, len(self._column) - 1)
        column = self._column[last]
        for place in range(draft.draft_length):
            scores = torch.where((column >= 0)[:, None], self._scores[column.clamp(min=0)], 0.0)  # [B, Vd]
            probs = (scores / temperature).softmax(-1)
            noise = torch.empty_like(probs).exponential_(generator=self._generator)
            column = torch.where(greedy, scores.argmax(-1), (probs / noise).argmax(-1))
            if draft.draft_probs is not None:
                certain = torch.nn.functional.one_hot(column, probs.shape[1]).float()
                draft.draft_probs[:, place] = torch.where(greedy[:, None], certain, probs)
            draft.token_ids[:, place] = self.draft_vocab[column]
            draft.confidence[:, place] = probs.gather(1, column[:, None])[:, 0]
        draft.lengths.fill_(draft.draft_length)
        draft.source.zero_()
        draft.shorten(limits)

    def status(self) -> dict[str, Any]:
        return {"target": self._target_path, "draft_vocabulary": len(self.draft_vocab)}


def _vocabulary(context: PluginContext) -> list[int]:
    """Return the ids that it drafts: every second one, without the tokenizer's and the model's special ones."""
    special = set(getattr(context.target_tokenizer, "all_special_ids", ()))
    if context.target_config is not None:
        text = context.target_config.get_text_config()
        special |= {getattr(text, name, None) for name in ("bos_token_id", "pad_token_id")}
    return [token for token in range(0, context.vocab_size, 2) if token not in special]
