"""The draft buffers of one engine: allocated once, viewed at every step, merged if several draft, and sanitized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.interfaces import Proposer
from specplug.steps.handles import ProposerHandle
from specplug.types.caps import Distribution, EngineCaps
from specplug.types.step import Draft, EngineBatch
from specplug.types.tensors import as_array, library


class DraftBuffers:
    """One buffer of S rows per proposer, and one for the merged draft if there are several proposers.

    At most one buffer has a distribution, [S, N, Vd] float32: that of the first proposer that declares a distribution
    that the engine takes, or logits if the engine takes probabilities, to which `merge` turns them.  The merged draft
    shares its memory.  The tokens of all other proposers are verified as one-hot drafts, which is also lossless.
    """

    def __init__(
        self, handles: Sequence[ProposerHandle], caps: EngineCaps, max_slots: int, vocab_size: int, device: torch.device
    ) -> None:
        self.starts = list(accumulate((len(handle.sources) for handle in handles), initial=0))
        """Index in `sources` of each proposer's first source."""
        self.sources = tuple(source for handle in handles for source in handle.sources)
        """Names of all proposers' sources, in order."""

        def allocate(distribution: Distribution, trees: bool, draft_vocab: Tensor | None = None) -> Draft:
            return Draft.allocate(
                max_slots,
                caps.max_draft_length,
                device=device,
                trees=trees,
                distribution=distribution,
                vocab_size=vocab_size,
                draft_vocab=draft_vocab,
                sources=self.sources,
            )

        trees = [handle.caps.trees for handle in handles]
        self.parts = [allocate(Distribution.ONE_HOT, of_one) for of_one in trees]
        """The buffer of each proposer."""
        taken = {Distribution.PROBS: (Distribution.PROBS, Distribution.LOGITS), Distribution.ONE_HOT: ()}
        states = (it.caps.distribution in taken.get(caps.draft_input, (caps.draft_input,)) for it in handles)
        self._logits_owner = next((index for index, it in enumerate(states) if it), -1)
        if self._logits_owner >= 0:
            handle = handles[self._logits_owner]
            draft_vocab = checked_draft_vocab(handle.spec.name, handle.proposer, vocab_size)
            self.parts[self._logits_owner] = allocate(handle.caps.distribution, handle.caps.trees, draft_vocab)
        self._to_probs = self._logits_owner >= 0 and self.parts[self._logits_owner].distribution is not caps.draft_input
        self._merged = self.parts[0]
        if len(handles) > 1:
            self._merged = allocate(Distribution.ONE_HOT, any(trees))
            if self._logits_owner >= 0:
                self._merged = _with_logits(self._merged, self.parts[self._logits_owner])
        self.distribution = Distribution.PROBS if self._to_probs else self._merged.distribution
        """The distribution that the draft of a whole batch may carry."""
        self.has_draft_vocab = self._merged.draft_vocab is not None
        stated = self._merged.draft_logits if self._merged.draft_probs is None else self._merged.draft_probs
        self.distribution_bytes = 0 if stated is None else stated.nbytes

    def empty(self, batch: EngineBatch, draft_length: int) -> Draft:
        """Return the buffer of the whole batch, empty; a single proposer writes directly into it."""
        draft = self._merged.view(batch.batch_size, draft_length)
        draft.reset(batch.lengths)
        return draft

    def merge(self, batch: EngineBatch, parts: Sequence[Draft]) -> Draft:
        """Merge the drafts `parts`, one per proposer.  Every row has one proposer, so rows never collide.

        In the result, `source` indexes the sources of all proposers.  With one proposer nothing is copied.
        """
        for start, part in zip(self.starts, parts, strict=False):
            shift_sources(part, start)
        merged = parts[0] if len(parts) == 1 else self._joined(batch, parts)
        return _as_probs(merged, batch.temperature) if self._to_probs else merged

    def _joined(self, batch: EngineBatch, parts: Sequence[Draft]) -> Draft:
        merged = self.empty(batch, parts[0].draft_length)
        for index, part in enumerate(parts):
            rows = part.lengths > 0
            _take_rows(merged, part, rows)
            if index != self._logits_owner:
                merged.as_one_hot(rows)
        return merged


def _as_probs(draft: Draft, temperature: Tensor) -> Draft:
    """Turn logits into probabilities, in place; `temperature` is [B].  Greedy rows become one-hot."""
    assert draft.draft_logits is not None
    assert draft.drawn is not None
    draws = temperature > 0
    draft.drawn.logical_and_(draws[:, None])
    rows = draft.drawn_rows()
    divisor = torch.where(draws, temperature, 1.0)[rows, None, None]
    draft.draft_logits[rows] = torch.softmax(draft.draft_logits[rows] / divisor, dim=-1)
    return replace(draft, distribution=Distribution.PROBS, draft_probs=draft.draft_logits, draft_logits=None)


def shift_sources(draft: Draft, start: int) -> None:
    """Renumber `source`, in place, for a list of names in which the draft's own begin at `start`; -1 for unknown."""
    source = as_array(draft.source)
    is_known = (source >= 0) & (source < len(draft.sources))
    source[...] = library(draft.source).where(is_known, source + start, -1)


def with_own_sources(draft: Draft, start: int, sources: tuple[str, ...]) -> Draft:
    """Undo `shift_sources`: renumber `source` for `sources`, which began at `start`, with -1 for all others."""
    if draft.sources == sources:
        return draft
    own = draft.source - start
    mine = (own >= 0) & (own < len(sources))
    return replace(draft, source=torch.where(mine, own, -1), sources=sources)


def _take_rows(merged: Draft, part: Draft, rows: Tensor) -> None:
    """Copy `rows` [B] bool of `part` into `merged`, in place.  Distributions share memory and need no copy."""
    torch.where(rows, part.lengths, merged.lengths, out=merged.lengths)
    for name in ("token_ids", "confidence", "source", "parents", "drawn"):
        mine = getattr(merged, name)
        theirs = getattr(part, name)
        if mine is not None and theirs is not None:  # `reset` has written the parents of a chain
            torch.where(rows[:, None], theirs, mine, out=mine)


def _with_logits(buffer: Draft, stating: Draft) -> Draft:
    """Return `buffer` with the distribution of `stating`, sharing its memory."""
    assert stating.drawn is not None
    return replace(
        buffer,
        distribution=stating.distribution,
        draft_logits=stating.draft_logits,
        draft_probs=stating.draft_probs,
        draft_vocab=stating.draft_vocab,
        drawn=torch.ones_like(stating.drawn),
    )


def checked_draft_vocab(name: str, proposer: Proposer, vocab_size: int) -> Tensor | None:
    """Return a proposer's draft vocabulary.  Reads it back, so call this only at start-up.

    Raises:
        ContractError: it is not a list of distinct ids.
    """
    ids = proposer.draft_vocab
    if ids is None or ids.device.type == "meta":
        return ids
    is_list = ids.ndim == 1 and ids.dtype is torch.int64 and len(ids) > 0
    if not is_list or int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(set(ids.tolist())) < len(ids):
        raise ContractError.build(
            "malformed draft vocabulary",
            who=f"proposer {name!r}",
            found=f"{tuple(ids.shape)} {ids.dtype}, ids {ids.flatten()[:5].tolist()} ...",
            expected=f"[Vd] torch.int64, distinct ids in [0, {vocab_size})",
            remedy="Set draft_vocab once, in the constructor",
        )
    return ids
