"""LookupProposer: the proposer `ngram`, and the base class of others that use the match index."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import torch
from torch import Tensor

from specplug.cores import usable_cores
from specplug.interfaces import PluginContext, Proposer
from specplug.match.cpu.lookup import SOURCES, Lookup
from specplug.match.cpu.texts import NO_TEXT, Tokens
from specplug.match.options import LookupSettings
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft
from specplug.types.host_step import HostStep
from specplug.types.request import BEGINS, EngineEvent, EngineEventKind, Event, Lifecycle, Request, RequestEvent

_FORGETS: dict[str, tuple[EngineEventKind, ...]] = {
    "weights": ("cache flushed", "weights changed"),
    "flush": ("cache flushed",),
    "never": (),
}
"""Events that clear the response memory, by `memory_forget`: the default is for responses that new weights outdate."""


ENGINE_SOURCE = "engine"
"""The source of tokens of the engine's own drafter."""


class _Occupant(NamedTuple):
    """The request in a slot, and the key under which its response is stored; None if it is not stored."""

    generation: int
    request: Request
    owner: str | None


class LookupProposer(Proposer):
    """Drafts continuations of matches in the request's own text and references, and in remembered responses.

    When a request finishes, the part of its response that the client saw is stored under the request's isolation key.
    Requests with `store: false` neither read nor extend the memory.

    Requests that run at the same time on one prompt, or name one `group`, are siblings within their isolation key: each
    also drafts from what the others have emitted, as the samples of one prompt do in rollouts (Seer, arXiv 2511.14617).

    References precede a request's own text; together they may take as many tokens as the longest context.
    """

    sources: tuple[str, ...] = SOURCES[:3]

    def __init__(self, context: PluginContext) -> None:
        """Reserve memory, for `context.max_slots` texts of twice the longest context."""
        settings: LookupSettings = context.options or LookupSettings()
        self._is_shared, self._forgets = settings.memory_scope == "server", _FORGETS[settings.memory_forget]
        self._trees, self._max_length = context.caps.trees, context.max_length
        draft_length, capacity = max(1, context.caps.max_draft_length), 2 * max(1, context.max_length)
        threads = settings.threads or default_threads(context.caps.tensor_parallel_size)
        engine_tokens, source = context.caps.engine_tokens, len(self.sources)
        if engine_tokens:
            self.sources = (*self.sources, ENGINE_SOURCE)
        self.lookup = Lookup(
            context.max_slots,
            capacity,
            draft_length,
            settings,
            trees=self._trees,
            threads=threads,
            engine_tokens=engine_tokens,
            engine_source=source,
        )
        self._occupants: dict[int, _Occupant] = {}
        self._arriving: set[int] = set()  # slots whose requests join their siblings once their prompts are ingested

    def warmup(self) -> None:
        """Compile or load the kernels."""
        warm_up(trees=self._trees, threads=self.lookup.pool.threads)

    def close(self) -> None:
        """Stop the lookup's threads."""
        self.lookup.close()

    def ingest(self, batch: EngineBatch) -> None:
        """Ingest new tokens and learn from them."""
        if batch.reset_slots:
            self._begin_unreported(batch)
        table = _without_barriers(batch) if batch.barriers else batch.tokens
        slots, rows = _wide(batch.slots), _wide(batch.rows)
        self.lookup.ingest(slots, table, rows, batch.lengths, batch.num_new, batch.first)
        for slot in [*self._arriving]:
            self._join(slot)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Fill in the drafts."""
        self.lookup.propose(_wide(batch.slots), limits, draft)

    def host_step(self) -> HostStep:
        """Return the step as a C function; see `specplug.interfaces.HasHostStep`."""
        self.lookup.start_threads()
        return HostStep(self.lookup.host_step.function(), self.lookup.host_step.address)

    def begin_text(self, slot: int, tokens: Tokens) -> None:
        """Ingest the text of a request that has just begun."""
        occupant = self._occupants.get(slot)
        most = 0 if occupant is None else occupant.request.prompt_length + occupant.request.max_tokens
        self.lookup.begin(slot, tokens, max(len(tokens), min(most, self._max_length)))
        self._join(slot)

    def is_outdated(self) -> bool:
        """Return False: nothing changes from outside."""
        return False

    def update(self) -> None:
        """Do nothing."""

    def on_event(self, event: Event) -> None:
        """Begin texts, and store responses."""
        if isinstance(event, EngineEvent):
            if event.kind in self._forgets:
                self.lookup.clear_responses()
            return
        if event.kind in BEGINS:
            self._begin(event)
        else:
            occupant = self._occupants.get(event.slot)
            if occupant is not None and occupant.generation == event.generation:
                self.lookup.leave(event.slot)
            if event.kind is Lifecycle.FINISHED:
                self._remember(event)

    def _begin(self, event: RequestEvent) -> None:
        """Begin a request's text.  Even if this fails, the slot keeps nothing of its previous request."""
        slot, request = event.slot, event.request
        self._vacate(slot)
        owner = self._owner(request)
        self.begin(slot, request, owner)
        self._occupants[slot] = _Occupant(event.generation, request, owner if request.may_share else None)
        if request.may_share:
            self._arriving.add(slot)

    def _join(self, slot: int) -> None:
        """Let the request in a slot and those on the same prompt draft from each other, once its prompt is ingested."""
        occupant = self._occupants.get(slot)
        if slot not in self._arriving or occupant is None:
            return
        request, prompt = occupant.request, self.lookup.text_of(slot)[: occupant.request.prompt_length]
        if len(prompt) == request.prompt_length:
            self._arriving.discard(slot)
            group = request.options.group or hashlib.blake2b(prompt.tobytes(), digest_size=16).hexdigest()
            self.lookup.join(slot, f"{occupant.owner}:{group}", request.prompt_length)

    def _vacate(self, slot: int) -> None:
        """Clear a slot: its text, its references, and its access to responses and corpora."""
        self._occupants.pop(slot, None)
        self._arriving.discard(slot)
        self.lookup.start(slot)

    def begin(self, slot: int, request: Request, owner: str) -> None:
        """Begin a request's text in a slot; `owner`: whose responses to draft from, and whose hit rates to learn."""
        references = [reference.token_ids for reference in request.references]
        self.lookup.start(slot, owner=owner, references=references)

    def _remember(self, event: RequestEvent) -> None:
        occupant = self._occupants.get(event.slot)
        if occupant is None or occupant.generation != event.generation:
            return
        del self._occupants[event.slot]
        if occupant.owner is None or event.visible is None:
            return
        self.lookup.remember(event.slot, occupant.owner, occupant.request.prompt_length, event.visible)

    def _owner(self, request: Request) -> str:
        """Return the owner in the response memory, and of the hit rates by token.

        Requests that neither read nor extend the memory have an owner without responses: hit rates by token tell which
        tokens a text repeats.
        """
        if not request.may_share:
            return f"unstored:{request.isolation_key}"
        return "" if self._is_shared else f"key:{request.isolation_key}"

    def _begin_unreported(self, batch: EngineBatch) -> None:
        """Begin texts without a start event: they have no references, and their responses are not stored."""
        generations = dict(zip(batch.slots.tolist(), batch.generations.tolist(), strict=True))
        for slot in batch.reset_slots:
            occupant = self._occupants.get(slot)
            if slot in generations and (occupant is None or occupant.generation != generations[slot]):
                self._vacate(slot)


def _wide(numbers: Tensor) -> Tensor:
    """Return the numbers as int64, without a call to torch if they already are."""
    return numbers if numbers.dtype is torch.int64 else numbers.long()


def _without_barriers(batch: EngineBatch) -> Tensor:
    """Return the token table with barriers among the new tokens replaced by NO_TEXT."""
    lengths, num_new = batch.lengths.tolist(), batch.num_new.tolist()
    rows, first = batch.rows.tolist(), [0] * batch.batch_size if batch.first is None else batch.first.tolist()
    table: Tensor | None = None
    for barrier in batch.barriers:
        row = barrier.row
        start, stop = max(barrier.start, lengths[row] - num_new[row]), min(barrier.stop, lengths[row])
        if start < stop:
            table = batch.tokens.clone() if table is None else table
            table[rows[row], start - first[row] : stop - first[row]] = NO_TEXT
    return batch.tokens if table is None else table


def default_threads(ranks: int) -> int:
    """Return the number of threads to draft on: a quarter of each rank's share of the usable cores, from 1 to 4.

    It is 1 where torch finds no accelerator, because there the model's own threads are on all cores.
    """
    if not torch.accelerator.is_available():
        return 1
    return min(4, max(1, usable_cores() // (4 * ranks)))


def warm_up(*, trees: bool, threads: int = 1) -> None:
    """Run every kernel once on a toy text, also those of the pool's threads if there are any."""
    lookup = Lookup(2, 64, 4, LookupSettings(memory_tokens=256, max_n=4), trees=trees, threads=min(threads, 2))
    for slot in range(2):
        lookup.start(slot, owner="")
        lookup.join(slot, "", 3)
    lookup.leave(1)
    slots, lengths = torch.zeros(1, dtype=torch.int64), torch.tensor([6], dtype=torch.int32)
    table = torch.tensor([[1, 2, 3, 1, 2, 3]], dtype=torch.int32)
    lookup.begin(0, table[0, :3].numpy(), 64)
    lookup.ingest(slots, table, slots, lengths, lengths - 3, None)
    lookup.propose(slots, lengths, Draft.allocate(1, 4, trees=trees))
    lookup.remember(0, "", 1, 6)
    lookup.responses.clear()
    if threads > 1:
        lookup.start_threads()
        lookup.close()
