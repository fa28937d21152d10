"""A base class for proposers composed of other proposers, and the operation that joins two drafts into one.

class Spliced(ComposedProposer):
    def __init__(self, context):
        super().__init__(context, ["ngram", "bigram"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from specplug.faults import status_of
from specplug.interfaces import PluginContext, Proposer
from specplug.steps.draft_buffers import shift_sources
from specplug.steps.proposer_runner import ProposerRunner
from specplug.types.request import Event
from specplug.types.step import Draft, EngineBatch, Verdict


class ComposedProposer(Proposer):
    """A proposer composed of others, its parts.  By default, `splice` joins the parts' drafts of each row in order.

    Register it as a device proposer.  Each part runs as it declares, on a host thread with a deadline if it needs one,
    and a part that fails costs only its own drafts.  Declare `learns` if a part learns, and `Distribution.LOGITS` if
    one states the logits that its tokens are drawn from.  Drafts are chains; a part's tree is reduced to its best path.

    Args:
        context: the context of the composed proposer.
        names: names of registered proposers, each with its own settings.
        stating: index of the part whose logits the drafts state; None if they are one-hot.

    Raises:
        PluginError: a part is not registered, does not start, or is composed of this proposer.
    """

    def __init__(self, context: PluginContext, names: Sequence[str], *, stating: int | None = None) -> None:
        self.parts: tuple[ProposerRunner, ...] = tuple(
            context.part(name, states=index == stating) for index, name in enumerate(names)
        )
        if stating is not None:
            states = self.parts[stating].buffer.draft_logits is not None
            nothing = torch.zeros(1, dtype=torch.int64, device=context.device)  # one id takes the least memory
            self.draft_vocab = self.parts[stating].buffer.draft_vocab if states else nothing
        self.sources = tuple(source for part in self.parts for source in part.sources)
        self._starts = list(accumulate((len(part.sources) for part in self.parts), initial=0))

    def compose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Fill `draft`, which arrives empty, with the parts' drafts.

        Override it to compose differently.  Every part must run at every step: call `part_draft`, or `ingest` of the
        part if its drafts are not needed.
        """
        for index in range(len(self.parts)):
            splice(draft, self.part_draft(index, batch, limits, draft.draft_length))

    def part_draft(self, index: int, batch: EngineBatch, limits: Tensor, draft_length: int) -> Draft:
        """Return one part's chains of at most `limits` [B] tokens; `source` indexes `sources`.

        The part's next step overwrites the buffer of the draft.
        """
        draft = self.parts[index].draft(batch, limits, draft_length).as_chain()
        shift_sources(draft, self._starts[index])
        return replace(draft, sources=self.sources)

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Let the parts ingest and draft in one call, so that each threaded part is waited for only once."""
        if limits is not None and draft is not None:
            self.compose(batch, limits, draft)
            return
        for part in self.parts:
            part.ingest(batch)

    def ingest(self, batch: EngineBatch) -> None:
        """Let the parts ingest."""
        self.step(batch, None, None)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Compose drafts for a batch that `ingest` was called with."""
        self.step(replace(batch, reset_slots=()), limits, draft)

    def observe(self, batch: EngineBatch, draft: Draft, verdict: Verdict) -> None:
        """Let the parts learn, each from the tokens of its own sources."""
        for part, start in zip(self.parts, self._starts, strict=False):
            part.observe(batch, draft, start, verdict)

    def on_event(self, event: Event) -> None:
        """Pass the event to the parts."""
        for part in self.parts:
            part.on_event(event)

    def status(self) -> dict[str, Any]:
        """Return the parts' statuses, by name."""
        found = {part.handle.spec.name: status_of(part.guard.name, part.handle.proposer) for part in self.parts}
        return {name: status for name, status in found.items() if status}

    def close(self) -> None:
        """Release the parts."""
        for part in self.parts:
            part.close()


def splice(draft: Draft, other: Draft) -> None:
    """Extend each row of `draft`, in place, by the rest of the row of `other` if the latter starts with the former.

    An empty row is a prefix of every draft, so empty rows are filled.  All other rows are unchanged.  Runs on the
    device and reads nothing back.  Tokens that continue a row are selected by the value of the drafts before them, so
    they are lossless only as one-hot drafts; those that fill an empty row keep the logits that they were drawn from.

    Args:
        draft: [B, N] chains.
        other: [B, N] chains on the same device, with the same `sources`, and the same draft vocabulary if both state
            logits.
    """
    place = torch.arange(draft.draft_length, device=draft.device)
    after = place >= draft.lengths[:, None]
    agrees = ((draft.token_ids == other.token_ids) | after).all(1)
    tail = after & other.mask() & agrees[:, None]
    for mine, theirs in (
        (draft.token_ids, other.token_ids),
        (draft.confidence, other.confidence),
        (draft.source, other.source),
    ):
        torch.where(tail, theirs, mine, out=mine)
    if draft.drawn is not None:
        _take_logits(draft, other, tail, tail & (draft.lengths == 0)[:, None])
    draft.lengths.add_(tail.sum(1))


def _take_logits(draft: Draft, other: Draft, new: Tensor, filling: Tensor) -> None:
    """Mark the `new` [B, N] tokens of a draft as drawn, with their logits, where they are `filling` and were drawn."""
    assert draft.drawn is not None
    is_drawn = torch.zeros_like(filling) if other.drawn is None else filling & other.drawn
    torch.where(new, is_drawn, draft.drawn, out=draft.drawn)
    if draft.draft_logits is None or other.draft_logits is None:
        return
    if draft.device.type == "cpu":
        rows, places = is_drawn.nonzero(as_tuple=True)
        draft.draft_logits[rows, places] = other.draft_logits[rows, places]
    else:
        torch.where(is_drawn[:, :, None], other.draft_logits, draft.draft_logits, out=draft.draft_logits)
