"""Written: drafts as the engine's buffer takes them, which are kept until their verdict."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from specplug.draft_model.segments import Segments
from specplug.draft_model.texts import NO_REQUEST, Running
from specplug.types.draft import NO_TOKEN, Draft
from specplug_crosstok.acceptance import COMMON, OPEN_WORD, TEXT, KindAcceptance, kinds_of
from specplug_crosstok.drawing import Drawing


class Written(NamedTuple):
    """Draft tokens by row of the draft model's cache, [R, K]; only the first `counts` [R] of each row are there.

    Attributes:
        ids, sources, steps, kinds: int64; see `Draft`, `Segments` and `specplug_crosstok.acceptance`.
        is_drawn: bool.
        probabilities: float64, see `Segments`.
        confidence: float32, see `Draft`.
        counts: [R] int64.
        owners, base_len: [R] int64, the request, and its length.
    """

    ids: Tensor
    sources: Tensor
    steps: Tensor
    kinds: Tensor
    is_drawn: Tensor
    probabilities: Tensor
    confidence: Tensor
    counts: Tensor
    owners: Tensor
    base_len: Tensor

    @classmethod
    def allocate(cls, max_rows: int, draft_length: int, device: torch.device) -> Self:
        """Return the drafts of no requests, whose tensors stay where they are."""
        numbers = torch.zeros(max_rows, draft_length, dtype=torch.int64, device=device)
        ids, sources, steps, kinds = (numbers.clone() for _ in range(4))
        counts, owners, base_len = (numbers[:, 0].clone() for _ in range(3))
        is_drawn, probabilities, confidence = numbers > 0, numbers.double(), numbers.float()
        of_tokens = ids, sources, steps, kinds, is_drawn, probabilities, confidence
        return cls(*of_tokens, counts, owners.fill_(NO_REQUEST), base_len)

    @classmethod
    def of(
        cls,
        found: Segments,
        drawing: Drawing,
        acceptance: KindAcceptance,
        is_sampled: Tensor,
        counts: Tensor,
        running: Running,
    ) -> Self:
        """Return the draft tokens.

        They stand for what was `found`; `is_sampled` [R] bool are the requests with a temperature, and `counts` [R]
        int64 says how many of the tokens are wanted.
        """
        rows = slice(len(counts))
        draws = drawing.is_common[rows].gather(1, found.steps) & (drawing.temperature[rows] > 0)[:, None]
        is_drawn = found.is_fixed & draws
        sources = torch.where(found.is_fixed, COMMON, torch.where(found.is_last, OPEN_WORD, TEXT))
        levels = drawing.levels[rows].gather(1, found.steps)
        kinds = kinds_of(sources, levels, is_drawn, is_sampled[:, None])
        return cls(
            found.ids,
            sources,
            found.steps,
            kinds,
            is_drawn,
            found.probabilities,
            acceptance.confidence(kinds, found.probabilities).float(),
            torch.minimum(counts, found.counts),
            running.owners,
            running.lengths,
        )

    def store(self, new: Written) -> None:
        """Take over the drafts of the first R rows."""
        num_rows = len(new.counts)
        for held, given in zip(self, new, strict=True):
            held[:num_rows] = given

    def write(self, draft: Draft, rows: Tensor, logits: Tensor | None) -> None:
        """Write the draft of B requests, whose rows are `rows` [B] int64, negative for those without one.

        `rows` [B] int64 are the requests' rows, negative for those without one; `logits` [R, n, Vd] is what common ids
        were drawn from.
        """
        row, columns = rows.clamp(min=0), slice(draft.draft_length)
        draft.lengths.copy_(torch.where(rows >= 0, self.counts[row], 0))
        inside = draft.mask()
        draft.token_ids.copy_(torch.where(inside, self.ids[row, columns], NO_TOKEN))
        draft.source.copy_(torch.where(inside, self.sources[row, columns], -1))
        draft.confidence.copy_(torch.where(inside, self.confidence[row, columns], 0.0))
        if draft.drawn is None:
            return
        draft.drawn.copy_(self.is_drawn[row, columns])
        if draft.draft_logits is not None and logits is not None:
            for place in range(draft.draft_length):
                draft.draft_logits[:, place] = logits[row, self.steps[row, place]]
