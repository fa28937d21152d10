"""LookupProposer: the proposer `ngram`, and the base class of others that draft by lookup."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specplug.interfaces import PluginContext, Proposer
from specplug.launching import Around
from specplug.lookup import layout as at
from specplug.lookup import storage
from specplug.lookup.options import LookupSettings
from specplug.lookup.owners import Groups, Owners
from specplug.lookup.steps import LookupSteps
from specplug.types.request import BEGINS, EngineEvent, EngineEventKind, Event, Lifecycle, Request, RequestEvent
from specplug.types.step import Draft, EngineBatch

_FORGETS: dict[str, tuple[EngineEventKind, ...]] = {
    "weights": ("cache flushed", "weights changed"),
    "flush": ("cache flushed",),
    "never": (),
}
"""Events that clear the response memory, by `memory_forget`."""

LEAST_RING = 1 << 12
"""Places of a ring that holds only what siblings share."""


class _Occupant(NamedTuple):
    """The request in a slot.

    Attributes:
        key: the key under which its response is stored; None if it is not stored.
        start: tokens of its references.
    """

    generation: int
    request: Request
    key: str | None
    start: int


class LookupProposer(Proposer):
    """Drafts continuations of matches in the request's own text and references, and in remembered responses.

    When a request finishes, the part of its response that the client saw is stored under the request's isolation key.
    Requests with `store: false` neither read nor extend the memory.

    Requests that run at the same time on one prompt, or name one `group`, are siblings within their isolation key: each
    also drafts from what the others have emitted, as the samples of one prompt do in rollouts (Seer, arXiv 2511.14617).

    References precede a request's own text; together they may take as many tokens as the longest context.

    A step only launches: its matches, counts and drafts stay on the engine's device.  A request without an event of
    its beginning gets no drafts.
    """

    sources: tuple[str, ...] = at.SOURCES[:3]

    def __init__(self, context: PluginContext) -> None:
        """Reserve memory, for `context.max_slots` texts of twice the longest context."""
        settings: LookupSettings = context.options or LookupSettings()
        self._is_shared = settings.memory_scope == "server"
        self._forgets = _FORGETS[settings.memory_forget]
        self._remembers = settings.memory_tokens > 0
        if context.caps.engine_tokens:
            self.sources = (*self.sources, at.SOURCES[at.OF_ENGINE])  # their last
        self.steps = LookupSteps(
            *_sizes(context, settings),
            context.device,
            engine_tokens=context.caps.engine_tokens,
            trees=context.caps.trees,
            shortest=settings.min_n,
            least=max(1, round(at.SURE * settings.min_survival)),
            engine_source=len(self.sources) - 1,
        )
        self._ring = len(self.steps.state.ring)
        self._room = self._ring // (2 * context.max_slots)  # so that the spans of all slots take half of the ring
        self._owners = Owners()
        self._groups = Groups()
        self._occupants: dict[int, _Occupant] = {}
        self._places = 0  # upper bound of the places of the ring that have been used

    @property
    def around(self) -> Around | None:
        """Work that the kernels of chains do in place of separate launches; see `LookupSteps`."""
        return self.steps.around

    def warmup(self) -> None:
        """Compile or load the kernels, also those with work `around` them."""
        self.steps.warm_up()

    def step(self, batch: EngineBatch, limits: Tensor | None, draft: Draft | None) -> None:
        """Ingest new tokens and learn from them, and fill in the drafts."""
        self.steps.run(batch, limits, draft)

    def may_repeat(self) -> bool:
        """Return whether the newest step's launches may be made again; this counts as a step."""
        return self.steps.may_repeat()

    def ingest(self, batch: EngineBatch) -> None:
        """Ingest new tokens and learn from them."""
        self.step(batch, None, None)

    def propose(self, batch: EngineBatch, limits: Tensor, draft: Draft) -> None:
        """Fill in the drafts of a batch that has been ingested."""
        self.steps.run(batch, limits, draft, is_new=False)

    def checksums(self, slots: Tensor) -> dict[str, Tensor]:
        """Return sums of the texts' ends, of what is known of each request, and of the common tables."""
        return storage.checksums(self.steps.state, self.steps.texts, slots)

    # -- events ----------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """Begin texts, and store responses."""
        if isinstance(event, EngineEvent):
            if event.kind in self._forgets:
                self._forget()
        elif event.kind in BEGINS:
            self._begin(event)
        else:
            self._end(event)

    def _begin(self, event: RequestEvent) -> None:
        """Begin a request's text.  If this fails, the slot has no request, and gets no drafts."""
        slot = event.slot
        request = event.request
        self._vacate(slot)
        if self._owners.are_used_up:
            self._forget()
            self._owners.restart()
            self.steps.state.slots[:, at.OWNER].zero_()
        key = self._key(request)
        start = self.begin(slot, event.generation, self._owners.number_of(key), request)
        occupant = _Occupant(event.generation, request, key if request.may_share else None, start)
        self._occupants[slot] = occupant
        group = request.options.group or request.prompt_digest
        if group and request.may_share:
            self._groups.add(slot, f"{key}:{group}")
            self._join(slot)

    def begin(self, slot: int, generation: int, owner: int, request: Request) -> int:
        """Begin a request's text in a slot, and return the length of its references; `owner`: see `LookupSteps`."""
        return self.steps.begin(slot, generation, owner, [it.token_ids for it in request.references])

    def _end(self, event: RequestEvent) -> None:
        occupant = self._occupants.get(event.slot)
        if occupant is None or occupant.generation != event.generation:
            return
        if event.kind is Lifecycle.FINISHED and event.visible is not None:
            self._remember(event.slot, occupant, event.visible)
        self._vacate(event.slot)

    def _vacate(self, slot: int) -> None:
        self._occupants.pop(slot, None)
        if self._groups.remove(slot):
            storage.leave(self.steps.state, slot)

    # -- the ring --------------------------------------------------------------------------------------------------

    def _remember(self, slot: int, occupant: _Occupant, visible: int) -> None:
        """Store the part of a response that the client saw, as far as it has been ingested."""
        prompt_length = occupant.request.prompt_length
        if occupant.key is None or not self._remembers or visible <= prompt_length:
            return
        self._take_places(visible - prompt_length + at.CONTEXT)
        owner = self._owners.add_response(occupant.key)
        start = occupant.start
        self.steps.remember(slot, start, start + prompt_length, start + visible, owner.number, owner.responses)

    def _join(self, slot: int) -> None:
        """Let the request in a slot share tokens with its group; the first request begins to share with the second."""
        group = self._groups.of(slot)
        if len(group.slots) == 1 and not group.number:
            return
        joining = [slot] if group.number else group.slots
        group.number = group.number or self._owners.new_number()
        for each in joining:
            occupant = self._occupants[each]
            room = min(occupant.request.max_tokens, self._room)
            self._take_places(room + at.CONTEXT)
            prompt = occupant.start + occupant.request.prompt_length
            storage.join(self.steps.state, each, group.number, group.joined, prompt, room)
            group.joined += 1

    def _take_places(self, tokens: int) -> None:
        """Count the places that the ring moves on by, and clear it before they become too large."""
        needed = min(tokens, self._ring) + 2 * at.GRANULE
        if self._places + needed > at.MAX_PLACES:
            self._forget()
        self._places += needed

    def _forget(self) -> None:
        """Forget all responses; siblings begin to share anew."""
        storage.clear(self.steps.state)
        self._places = 0
        for group in self._groups.sharing_groups():
            first, *others = group.slots
            group.number = 0
            group.slots = [first]
            for slot in others:
                group.slots.append(slot)
                self._join(slot)

    def _key(self, request: Request) -> str:
        """Return the key of the owner in the response memory, and of the hit rates by token.

        Requests that neither read nor extend the memory have an owner without responses: hit rates by token show which
        tokens a text repeats.
        """
        if not request.may_share:
            return f"unstored:{request.isolation_key}"
        return "" if self._is_shared else f"key:{request.isolation_key}"


def _sizes(context: PluginContext, settings: LookupSettings) -> tuple[int, int, int, int]:
    """Return S, L, K and C; see `LookupSteps`."""
    ring = settings.memory_tokens or LEAST_RING * context.max_slots
    return context.max_slots, 2 * max(1, context.max_length), max(1, context.caps.max_draft_length), ring


def memory_size(context: PluginContext) -> int:
    """Return the bytes that a proposer allocates on its device, without corpora."""
    slots, length, draft_length, ring = _sizes(context, context.options or LookupSettings())
    caps = context.caps
    state = storage.allocate(
        slots, length, draft_length, ring, "meta", engine_tokens=caps.engine_tokens, trees=caps.trees
    )
    size: int = sum(it.nbytes for it in state) + torch.int32.itemsize * slots * length
    return size
