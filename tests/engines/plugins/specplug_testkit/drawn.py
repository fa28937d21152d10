"""Proposers that draw their tokens, from a law that they state truly or falsely.  On the device, from a stream of
their own; the same stream on all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug_testkit.options import DrawnOptions

NEVER = -1e4  # a logit that no temperature of the tests revives
COLDEST = 1e-2


class Drawn(Proposer):
    """Draws each token from softmax(logits / temperature), greedy rows from temperature `COLDEST`."""

    def __init__(self, context: PluginContext) -> None:
        self.context = context
        self._options: DrawnOptions = context.options or DrawnOptions()
        is_meta = context.device.type == "meta"  # where there is nothing to draw
        self._generator = None if is_meta else torch.Generator(context.device).manual_seed(context.seed + 1)
        self._logits = self._law().to(context.device)

    def _law(self) -> Tensor:
        """Return [V] float32, the logits that are drawn from."""
        generator = torch.Generator().manual_seed(12345)
        logits = self._options.spread * torch.randn(self.context.vocab_size, generator=generator)
        if self._options.tokens:
            allowed = torch.zeros_like(logits, dtype=torch.bool)
            allowed[list(self._options.tokens)] = True
            logits.masked_fill_(~allowed, NEVER)
        return logits

    def stated(self, logits: Tensor) -> Tensor:
        """Return the logits that are stated for those that were drawn from."""
        return logits

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        shape = (*draft.token_ids.shape, self.context.vocab_size)
        temperature = batch.temperature.clamp(min=COLDEST)[:, None, None]
        noise = torch.empty(shape, device=draft.device).exponential_(generator=self._generator).log().neg_()
        drawn = (self._logits / temperature + noise).argmax(-1)
        law = self.stated(self._logits).expand(shape)
        if draft.draft_logits is not None:
            draft.draft_logits.copy_(law)
        if draft.draft_probs is not None:
            draft.draft_probs.copy_((law / temperature).softmax(-1))
        draft.token_ids.copy_(drawn)
        draft.confidence.fill_(1.0 / self.context.vocab_size)
        draft.lengths.fill_(draft.width)
        draft.source.zero_()
        draft.shorten(limits if self._options.length is None else limits.clamp(max=self._options.length))


class Liar(Drawn):
    """States the same law turned around: what it draws most often is stated to be drawn most seldom.

    Among the drawn tokens only, so that a stated probability is never 0; with spread 0 it would tell the truth.
    """

    def stated(self, logits: Tensor) -> Tensor:
        return torch.where(logits > NEVER, -logits, logits)
