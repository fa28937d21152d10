"""The draft buffers of one engine: allocated once, viewed every step, and merged when several proposers draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from specplug.pipeline.handles import ProposerHandle
from specplug.types.batch import EngineBatch
from specplug.types.caps import Distribution, DraftInput, EngineCaps
from specplug.types.draft import Draft

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
        self._own_sources = [handle.sources for handle in handles]
        self._starts = list(accumulate(map(len, self._own_sources), initial=0))
        self.sources = tuple(source for own in self._own_sources for source in own)
        """Names of all proposers' sources, in order."""

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

        declared = [handle.caps.distribution for handle in handles]
        laws = [law if law in _TAKES[caps.draft_input] else Distribution.ONE_HOT for law in declared]
        trees = [handle.caps.trees for handle in handles]
        self._parts = [allocate(*of_one) for of_one in zip(laws, trees, strict=True)]
        richest = next((law for law in laws if law is not Distribution.ONE_HOT), Distribution.ONE_HOT)
        self._merged = allocate(richest, any(trees)) if len(handles) > 1 else self._parts[0]

    @property
    def distribution(self) -> Distribution:
        """The law that whole batches' drafts may state."""
        return self._merged.distribution

    def part(self, index: int, batch: EngineBatch, width: int) -> Draft:
        """Return proposer `index`'s buffer, empty, for `batch`."""
        return _emptied(replace(self._parts[index], sources=self._own_sources[index]), batch, width)

    def empty(self, batch: EngineBatch, width: int) -> Draft:
        """Return the buffer of the whole batch, empty."""
        return _emptied(self._merged, batch, width)

    def merge(self, batch: EngineBatch, parts: Sequence[Draft]) -> Draft:
        """Return one draft of all parts, one per proposer.  Every row has one proposer, so rows never collide.

        From here on `source` points into the sources of all proposers.  With one proposer its part is the whole, and
        nothing is copied.
        """
        for start, own, part in zip(self._starts, self._own_sources, parts, strict=False):
            known = (part.source >= 0) & (part.source < len(own))
            part.source.add_(start).masked_fill_(~known, -1)
        if len(parts) == 1:
            return replace(parts[0], sources=self.sources)
        merged = self.empty(batch, parts[0].width)
        for part in parts:
            _take_rows(merged, part, part.lengths > 0)
        return merged

    def seen_by(self, index: int, draft: Draft) -> Draft:
        """Return `draft` as proposer `index` knows it: `source` points into its own sources, -1 for other tokens."""
        if len(self._parts) == 1:
            return draft
        own = draft.source - self._starts[index]
        mine = (own >= 0) & (own < len(self._own_sources[index]))
        return replace(draft, source=torch.where(mine, own, -1), sources=self._own_sources[index])


def _emptied(buffer: Draft, batch: EngineBatch, width: int) -> Draft:
    draft = buffer.view(batch.batch_size, width)
    draft.reset(batch.lengths)
    return draft


def _take_rows(merged: Draft, part: Draft, rows: Tensor) -> None:
    """Copy `rows` [B] bool of `part` into `merged`, in place and without temporary full distributions."""
    _take(merged.lengths, part.lengths, rows)
    for name in ("token_ids", "confidence", "source"):
        _take(getattr(merged, name), getattr(part, name), rows[:, None])
    if merged.parents is not None and part.parents is not None:  # else they are those of a chain, as emptied
        _take(merged.parents, part.parents, rows[:, None])
    if part.distribution is not merged.distribution:
        merged.as_one_hot(rows)
        return
    for mine, theirs in ((merged.draft_probs, part.draft_probs), (merged.draft_logits, part.draft_logits)):
        if mine is not None and theirs is not None:
            _take(mine, theirs, rows[:, None, None])


def _take(mine: Tensor, theirs: Tensor, rows: Tensor) -> None:
    torch.where(rows, theirs, mine, out=mine)
