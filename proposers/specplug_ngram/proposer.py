"""The n-gram proposer: `specplug.match.lookup` behind the interface of proposers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.match.lookup import SOURCES, Lookup, LookupOptions
from specplug.match.texts import NO_TEXT, Tokens
from specplug.types.batch import BatchView
from specplug.types.draft import Draft
from specplug.types.request import EngineEvent, Event, Lifecycle, Request, RequestEvent
from specplug_ngram.options import LookupSettings

_BEGINS = (Lifecycle.STARTED, Lifecycle.STARTED_DECODE_SIDE, Lifecycle.RESUMED, Lifecycle.UPDATED)


class _Tenant(NamedTuple):
    """Who has a slot, and under which key its response is remembered; None where it is not."""

    generation: int
    request: Request
    owner: str | None


class Ngram(Proposer):
    """Drafts what followed earlier matches: in the request's own text and references, and in remembered responses.

    A response is remembered when its request finishes, as far as the client saw it, under the request's isolation key.
    Requests that said `store: false`, and those with a seed and a temperature, neither read nor feed the memory.

    References stand before a request's own text; together they may take as many tokens as the longest context.
    """

    sources = SOURCES

    def __init__(self, context: PluginContext) -> None:
        settings: LookupSettings = context.options or LookupSettings()
        options = LookupOptions(
            shortest=settings.min_n,
            cap=settings.max_n,
            least=settings.min_survival,
            response_tokens=settings.memory_tokens,
        )
        self._everybody = settings.memory_scope == "server"
        self._trees = context.caps.trees
        width, capacity = max(1, context.caps.max_width), 2 * max(1, context.max_length)
        self._lookup = Lookup(context.max_slots, capacity, width, options, trees=self._trees)
        self._tenants: dict[int, _Tenant] = {}

    def warmup(self) -> None:
        """Compile the kernels, or load them: drafts are written into whole buffers and into parts of them."""
        warm_up(trees=self._trees)

    def ingest(self, batch: BatchView) -> None:
        """Take in new tokens, and learn from them."""
        slots, lengths, num_new = batch.slots.long().numpy(), batch.lengths.numpy(), batch.num_new.numpy()
        if batch.reset_slots:
            self._begin_untold(batch, slots)
        table = batch.tokens.numpy()
        if batch.barriers:
            table = _without_barriers(table, batch)
        first = None if batch.first is None else batch.first.numpy()
        self._lookup.ingest(slots, table, batch.rows.long().numpy(), lengths, num_new, first)

    def propose(self, batch: BatchView, limits: Tensor, draft: Draft) -> None:
        """Fill in the drafts."""
        parents = draft.parents.numpy() if self._trees and draft.parents is not None else None
        self._lookup.propose(
            batch.slots.long().numpy(),
            limits.numpy(),
            draft.token_ids.numpy(),
            draft.confidence.numpy(),
            draft.lengths.numpy(),
            draft.source.numpy(),
            parents,
        )

    def on_event(self, event: Event) -> None:
        """Begin texts, and remember responses."""
        if isinstance(event, EngineEvent):
            if event.kind == "cache flushed":
                self._lookup.responses.clear()
            return
        if event.kind in _BEGINS:
            owner = self._owner(event.request)
            self._tenants[event.slot] = _Tenant(event.generation, event.request, owner)
            references = [reference.token_ids for reference in event.request.references]
            self._lookup.start(event.slot, owner=owner, references=references)
        elif event.kind is Lifecycle.FINISHED:
            self._remember(event)

    def _remember(self, event: RequestEvent) -> None:
        tenant = self._tenants.pop(event.slot, None)
        if tenant is None or tenant.generation != event.generation or tenant.owner is None or event.visible is None:
            return
        self._lookup.remember(event.slot, tenant.owner, tenant.request.prompt_length, event.visible)

    def _owner(self, request: Request) -> str | None:
        if not request.may_share:
            return None
        return "" if self._everybody else f"key:{request.isolation_key}"

    def _begin_untold(self, batch: BatchView, slots: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Begin texts of which no event told: they have no references, and remember nothing."""
        generations = dict(zip(slots.tolist(), batch.generations.tolist(), strict=True))
        for slot in batch.reset_slots:
            tenant = self._tenants.get(slot)
            if slot in generations and (tenant is None or tenant.generation != generations[slot]):
                self._tenants.pop(slot, None)
                self._lookup.start(slot)


def _without_barriers(table: Tokens, batch: BatchView) -> Tokens:
    """Return the token table with spans that are no text marked as such, where they are among the new tokens."""
    lengths, num_new = batch.lengths.tolist(), batch.num_new.tolist()
    rows, first = batch.rows.tolist(), [0] * batch.batch_size if batch.first is None else batch.first.tolist()
    cut: Tokens | None = None
    for barrier in batch.barriers:
        row = barrier.row
        start, stop = max(barrier.start, lengths[row] - num_new[row]), min(barrier.stop, lengths[row])
        if start < stop:
            cut = table.copy() if cut is None else cut
            cut[rows[row], start - first[row] : stop - first[row]] = NO_TEXT
    return table if cut is None else cut


def warm_up(*, trees: bool) -> None:
    """Run every kernel once on a toy text, with each layout that buffers come in."""
    lookup = Lookup(1, 64, 4, LookupOptions(response_tokens=256, cap=4), trees=trees)
    lookup.start(0, owner="")
    slots, lengths, table = np.zeros(1, np.int64), np.array([6], np.int32), np.array([[1, 2, 3, 1, 2, 3]], np.int32)
    for width in (2, 4):
        lookup.ingest(slots, table, slots, lengths, np.array([6], np.int32))
        ids, confidence, parents = np.zeros((2, 4), np.int32), np.zeros((2, 4), np.float32), np.zeros((2, 4), np.int32)
        counts, sources = np.zeros(1, np.int32), np.zeros(1, np.int32)
        shape = (slice(0, 1), slice(0, width))
        above = parents[shape] if trees else None
        lookup.propose(slots, lengths, ids[shape], confidence[shape], counts, sources, above)
    lookup.remember(0, "", 1, 6)
    lookup.texts.truncate(0, 3)
    lookup.responses.clear()
