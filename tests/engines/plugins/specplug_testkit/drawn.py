"""A proposer that draws its tokens on the device, from a stream of its own that is the same on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.types.step import Draft, EngineBatch
from specplug_testkit.options import DrawnOptions

COLDEST = 1e-2


class Drawn(Proposer):
    """Draws each token from softmax(logits / temperature), greedy rows from temperature `COLDEST`.

    With `tokens` those are its draft vocabulary.  Requests of the tenant `lies_to` get another distribution stated.
    """

    def __init__(self, context: PluginContext) -> None:
        self.context = context
        self._options: DrawnOptions = context.options or DrawnOptions()
        is_meta = context.device.type == "meta"  # where there is nothing to draw
        self._generator = None if is_meta else torch.Generator(context.device).manual_seed(context.seed + 1)
        generator = torch.Generator().manual_seed(12345)
        logits = self._options.spread * torch.randn(context.vocab_size, generator=generator)
        if self._options.tokens:
            self.draft_vocab = torch.tensor(self._options.tokens, device=context.device)
            logits = logits[list(self._options.tokens)]
        self._logits = logits.to(context.device)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        shape = (*draft.token_ids.shape, len(self._logits))
        temperature = batch.temperature.clamp(min=COLDEST)[:, None, None]
        noise = torch.empty(shape, device=draft.device).exponential_(generator=self._generator).log().neg_()
        drawn = (self._logits / temperature + noise).argmax(-1)
        stated = self._logits.expand(shape)
        lies_to = self._options.lies_to
        lies = [lies_to is not None and request.tenant == lies_to for request in batch.requests or ()]
        if any(lies):  # what is drawn most often is stated to be so least
            stated = torch.where(torch.tensor(lies, device=draft.device)[:, None, None], -stated, stated)
        if draft.draft_logits is not None:
            draft.draft_logits.copy_(stated)
        if draft.draft_probs is not None:
            draft.draft_probs.copy_((stated / temperature).softmax(-1))
        draft.token_ids.copy_(drawn if self.draft_vocab is None else self.draft_vocab[drawn])
        draft.confidence.fill_(1.0 / self.context.vocab_size)
        draft.lengths.fill_(draft.draft_length)
        draft.source.zero_()
        draft.shorten(limits)
