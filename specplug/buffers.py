"""The draft buffers of one engine: allocated once, viewed every step, and merged when several proposers draft."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specplug.handles import ProposerHandle
from specplug.types.batch import BatchView
from specplug.types.caps import Distribution, DraftInput, EngineCaps
from specplug.types.draft import Draft, chain_parents

_TAKES = {
    DraftInput.ONE_HOT: {Distribution.ONE_HOT},
    DraftInput.LOGITS: {Distribution.ONE_HOT, Distribution.LOGITS},
    DraftInput.PROBS: {Distribution.ONE_HOT, Distribution.PROBS},
}


class DraftBuffers:
    """One buffer of S rows per proposer, and one for the merged draft where there are several.

    Full distributions are allocated only for proposers that declare them and engines that take them; elsewhere their
    tokens are verified as one-hot drafts, which is lossless too.  When proposers with and without one serve the same
    batch, the rows of the latter get their one-hot law written out.
    """

    def __init__(
        self,
        handles: Sequence[ProposerHandle],
        caps: EngineCaps,
        max_slots: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.sources = tuple(source for handle in handles for source in handle.sources)
        """Names of all proposers' sources, in order."""
        starts = [0]
        for handle in handles:
            starts.append(starts[-1] + len(handle.sources))
        self._starts = starts
        laws = [h.spec.caps.distribution for h in handles]
        laws = [law if law in _TAKES[caps.draft_input] else Distribution.ONE_HOT for law in laws]

        def allocate(law: Distribution, trees: bool) -> Draft:
            return Draft.allocate(
                max_slots,
                caps.max_width,
                device=device,
                trees=trees,
                distribution=law,
                vocab_size=vocab_size,
                sources=self.sources,
            )

        trees = [handle.spec.caps.trees for handle in handles]
        self._parts = [allocate(*of_one) for of_one in zip(laws, trees, strict=True)]
        richest = next((law for law in laws if law is not Distribution.ONE_HOT), Distribution.ONE_HOT)
        self._merged = allocate(richest, any(trees)) if len(handles) > 1 else self._parts[0]

    def part(self, index: int, batch: BatchView, width: int) -> Draft:
        """Return proposer `index`'s buffer, empty, for `batch`."""
        return _emptied(self._parts[index], batch, width)

    def merged(self, batch: BatchView, width: int) -> Draft:
        """Return the empty buffer of the whole batch; with one proposer it is that proposer's own."""
        return _emptied(self._merged, batch, width)

    def merge(self, draft: Draft, index: int, part: Draft) -> None:
        """Take over into `draft` the rows that `part` drafted.  Every row has one proposer, so rows never collide."""
        start = self._starts[index]
        if start:
            part.source.add_(torch.where(part.source >= 0, start, 0).to(part.source.dtype))
        if len(self._parts) == 1:
            return
        row = part.lengths > 0
        for name in ("token_ids", "confidence"):
            _take_rows(getattr(draft, name), getattr(part, name), row[:, None])
        if draft.parents is not None:
            _take_rows(draft.parents, part.parents if part.parents is not None else chain_parents(part), row[:, None])
        for name in ("lengths", "source"):
            _take_rows(getattr(draft, name), getattr(part, name), row)
        if draft.draft_probs is not None:
            law = part.draft_probs if part.draft_probs is not None else _one_hot(part, draft.draft_probs, 0.0, 1.0)
            _take_rows(draft.draft_probs, law, row[:, None, None])
        if draft.draft_logits is not None:
            logits = part.draft_logits
            if logits is None:
                logits = _one_hot(part, draft.draft_logits, float("-inf"), 0.0)
            _take_rows(draft.draft_logits, logits, row[:, None, None])


def _emptied(buffer: Draft, batch: BatchView, width: int) -> Draft:
    draft = buffer.view(batch.batch_size, width)
    draft.reset(batch.lengths)
    return draft


def _take_rows(mine: Tensor | None, theirs: Tensor | None, rows: Tensor) -> None:
    if mine is not None and theirs is not None:
        mine.copy_(torch.where(rows, theirs, mine))


def _one_hot(part: Draft, like: Tensor, elsewhere: float, at_token: float) -> Tensor:
    law = torch.full_like(like, elsewhere)
    return law.scatter_(2, part.token_ids.clamp(min=0).long()[:, :, None], at_token)
