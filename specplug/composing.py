"""Proposers made of other proposers: a base class, and the operation that joins two drafts into one.

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

from specplug.interfaces import PluginContext, Proposer, ReportsStatus
from specplug.pipeline.buffers import shift_sources
from specplug.pipeline.runner import ProposerRunner
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.request import Event
from specplug.types.verdict import Verdict


class ComposedProposer(Proposer):
    """A proposer made of others, its parts: by default each row's draft is what `splice` makes of theirs, in order.

    Register it as a device proposer with one-hot drafts: each part is run as it declares itself, on a host thread with
    a deadline where it needs one, and a part that fails costs its own drafts only.  Declare `learns` if a part learns.
    Drafts are chains: of a part's trees the best path is used.

    Args:
        context: of the composed proposer.
        names: registered proposers, each with its own settings.

    Attributes:
        parts: the proposers that it is made of, in order.

    Raises:
        PluginError: a part is not registered, does not start, or is made of this proposer.
    """

    def __init__(self, context: PluginContext, names: Sequence[str]) -> None:
        self.parts: tuple[ProposerRunner, ...] = tuple(context.part(name) for name in names)
        self.sources = tuple(source for part in self.parts for source in part.sources)
        self._starts = list(accumulate((len(part.sources) for part in self.parts), initial=0))

    def compose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        """Fill `draft`, which arrives empty, with the parts' drafts.

        Override it to compose otherwise.  Every part has to run at every step: by `part_draft`, or by `ingest` of
        `parts` where its drafts are not wanted.
        """
        for index in range(len(self.parts)):
            splice(draft, self.part_draft(index, batch, limits, draft.draft_length))

    def part_draft(self, index: int, batch: BatchView, limits: Tensor, draft_length: int) -> Draft:
        """Return the chains that one part drafts, of at most `limits` [B] tokens; `source` points into `sources`.

        The draft lies in a buffer that the part's next step overwrites.
        """
        draft = self.parts[index].draft(batch, limits, draft_length).as_chain()
        shift_sources(draft, self._starts[index])
        return replace(draft, sources=self.sources)

    def step(self, batch: BatchView, limits: Tensor | None, draft: Draft | None) -> None:
        """Let the parts ingest and draft in one call, so that those on threads are waited for once."""
        if limits is not None and draft is not None:
            self.compose(batch, limits, draft)
            return
        for part in self.parts:
            part.ingest(batch)

    def ingest(self, batch: BatchView) -> None:
        """Let the parts ingest."""
        self.step(batch, None, None)

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        """Compose drafts for a batch that `ingest` was called with."""
        self.step(replace(batch, reset_slots=()), limits, draft)

    def observe(self, batch: BatchView, draft: Draft, verdict: Verdict) -> None:
        """Let the parts learn, each by its own sources."""
        for part, start in zip(self.parts, self._starts, strict=False):
            part.observe(batch, draft, start, verdict)

    def on_event(self, event: Event) -> None:
        """Hand the event on to the parts."""
        for part in self.parts:
            part.on_event(event)

    def status(self) -> dict[str, Any]:
        """Return what the parts report to operators, by name."""
        proposers = {part.handle.spec.name: part.handle.proposer for part in self.parts}
        return {name: proposer.status() for name, proposer in proposers.items() if isinstance(proposer, ReportsStatus)}

    def close(self) -> None:
        """Release the parts."""
        for part in self.parts:
            part.close()


def splice(draft: Draft, other: Draft) -> None:
    """Append, in place, the further tokens of each row of `other` that begins with the whole of `draft`'s row.

    An empty row begins every draft, so empty rows are filled.  The other rows stay as they are.  Runs on the device
    and reads nothing back.  A token is chosen here by what the drafts before it are, so it is lossless as a one-hot
    draft only.

    Args:
        draft: [B, N] one-hot chains.
        other: [B, N] chains on the same device, `source` pointing into the same sources.
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
    draft.lengths.add_(tail.sum(1))
