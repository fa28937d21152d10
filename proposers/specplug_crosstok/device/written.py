"""Written: drafts as the engine's buffer takes them, and what is kept of them until their verdict."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from specplug.draft_model.device.segments import Segments
from specplug.types.draft import NO_TOKEN, Draft
from specplug_crosstok.device.acceptance import DeviceAcceptance
from specplug_crosstok.device.drawing import DeviceDrawing
from specplug_crosstok.kinds import DRAWN, SAMPLED
from specplug_crosstok.writing import COMMON, OPEN_WORD, TEXT


class Written(NamedTuple):
    """Draft tokens by row of the draft model's cache, [R, K]; only the first `counts` [R] of each row are there.

    Attributes:
        ids, sources, steps, kinds: int64; see `Draft`, `Segments` and `specplug_crosstok.kinds`.
        is_drawn: bool.
        probabilities: float64.
        counts: int64.
    """

    ids: Tensor
    sources: Tensor
    steps: Tensor
    kinds: Tensor
    is_drawn: Tensor
    probabilities: Tensor
    counts: Tensor

    @classmethod
    def of(cls, found: Segments, drawing: DeviceDrawing, is_sampled: Tensor, counts: Tensor) -> Self:
        """Return the draft tokens.

        Args:
            found: the tokens.
            drawing: how their ids were drafted.
            is_sampled: [R] bool, the requests with a temperature.
            counts: [R] int64, how many of the tokens are wanted.
        """
        rows = slice(len(counts))
        draws = drawing.is_common[rows].gather(1, found.steps) & (drawing.temperature[rows] > 0)[:, None]
        is_drawn = found.is_fixed & draws
        sources = torch.where(found.is_fixed, COMMON, torch.where(found.is_last, OPEN_WORD, TEXT))
        levels = drawing.levels[rows].gather(1, found.steps)
        kinds = torch.where(is_drawn, DRAWN.start + levels, sources + SAMPLED * is_sampled[:, None])
        counts = torch.minimum(counts, found.counts)
        return cls(found.ids, sources, found.steps, kinds, is_drawn, found.probabilities, counts)

    def write(self, draft: Draft, rows: Tensor, acceptance: DeviceAcceptance, logits: Tensor | None) -> None:
        """Write the draft of B requests, whose rows are `rows` [B] int64, negative for those without one.

        Args:
            draft: [B, K].
            rows: see above.
            acceptance: what the tokens are expected to be worth.
            logits: [R, n, Vd], what common ids were drawn from.
        """
        row = rows.clamp(min=0)
        draft.lengths.copy_(torch.where(rows >= 0, self.counts[row], 0))
        inside = draft.mask()
        confidence = acceptance.confidence(self.kinds, self.probabilities)
        draft.token_ids.copy_(torch.where(inside, self.ids[row], NO_TOKEN))
        draft.source.copy_(torch.where(inside, self.sources[row], -1))
        draft.confidence.copy_(torch.where(inside, confidence[row], 0.0))
        if draft.drawn is None:
            return
        draft.drawn.copy_(self.is_drawn[row])
        if draft.draft_logits is not None and logits is not None:
            for place in range(draft.draft_length):
                draft.draft_logits[:, place] = logits[row, self.steps[row, place]]


class Sent(NamedTuple):
    """Drafts that wait for their verdict, by row, whose tensors stay where they are.

    Attributes:
        owners, base_len: [rows] int64, the request, and its length when it was drafted for.
        kinds, probabilities: [rows, K] int64 and float64.
    """

    owners: Tensor
    base_len: Tensor
    kinds: Tensor
    probabilities: Tensor

    @classmethod
    def allocate(cls, max_rows: int, draft_length: int, device: torch.device) -> Self:
        """Return the drafts of no requests."""
        numbers = torch.full((max_rows, draft_length), -1, dtype=torch.int64, device=device)
        return cls(numbers[:, 0].clone(), numbers[:, 0].clone(), numbers.clamp(min=0), numbers.double())

    def store(self, written: Written, owners: Tensor, base_len: Tensor) -> None:
        """Keep the drafts of the first R rows."""
        num_rows, num_tokens = written.ids.shape
        self.owners[:num_rows], self.base_len[:num_rows] = owners, base_len
        self.kinds[:num_rows, :num_tokens] = written.kinds
        self.probabilities[:num_rows, :num_tokens] = written.probabilities
