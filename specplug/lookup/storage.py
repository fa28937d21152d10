"""What is done to the lookup's memory between steps: allocating it, events of requests, checksums; see `layout`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from specplug.lookup import layout as at
from specplug.lookup.counts import CONTEXTS, TOKENS_END, engine_counts, start_counts
from specplug.lookup.layout import Drafts, State
from specplug.types.tensors import checksum


def allocate(
    slots: int,
    length: int,
    draft_length: int,
    ring: int,
    device: torch.device | str = "cpu",
    *,
    engine_tokens: int = 0,
    trees: bool = False,
    shortest: int = 0,
    least: int = at.LEAST_SURVIVAL,
    engine_source: int = at.OF_ENGINE,
) -> State:
    """Return the state for S slots, texts of at most L tokens and drafts of K, with room for C response tokens.

    C is rounded up to a power of two, at least 256.  `engine_tokens` is G, see `plain.append`.  `shortest`, `least` and
    `engine_source` are settings, see `SHORTEST`; of a draft after the engine's tokens only its own count in survival.
    The texts, [S, L] int32, are not part of it: a slot's references, a negative token after each, and then its own
    text.
    """
    capacity = 1 << max(8, (ring - 1).bit_length())
    figures = at.FIGURES.copy()
    figures[[at.SHORTEST, at.LEAST, at.ENGINE_SOURCE]] = shortest, least, engine_source

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return State(
        slots=zeros(slots, at.FACTS),
        chain=zeros(slots, at.CHAIN_ROWS, draft_length),
        voted=zeros(slots, 2, at.CANDIDATES),
        counts=torch.from_numpy(
            np.concatenate((start_counts(at.UNIT), engine_counts(slots, engine_tokens, at.UNIT)))
        ).to(device),
        ring=zeros(capacity),
        owners=zeros(capacity // at.GRANULE),
        buckets=zeros(2, capacity // 4, at.ENTRIES),
        end=zeros(1),
        matches=zeros(slots, -(-length // at.BLOCK) * (at.TREE_MATCHES if trees else 1), dtype=torch.int64),
        figures=torch.from_numpy(figures).to(device),
        candidates=zeros(at.CANDIDATES, 7, dtype=torch.int64),
        nodes=zeros(slots if trees else 0, at.NODE_ROWS, draft_length, at.CANDIDATES),
        scopes=zeros(slots, at.SCOPE),
        corpus=zeros(1),
        segments=zeros(1, at.SEGMENT_FACTS, dtype=torch.int64),
        tenants=zeros(2),
        documents=zeros(1, 2),
        corpus_matches=zeros(slots, 1, at.CORPUS_CANDIDATES, dtype=torch.int64),
    )


def drafts_of(batch: int, draft_length: int, device: torch.device | str = "cpu", *, trees: bool = False) -> Drafts:
    """Return drafts of B rows, of undefined values."""

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Drafts(
        ids=empty(batch, draft_length),
        confidence=empty(batch, draft_length, dtype=torch.float32),
        sources=empty(batch, draft_length),
        lengths=empty(batch),
        parents=empty(batch if trees else 0, draft_length),
    )


def clear(state: State) -> None:
    """Forget all responses.  This is due before places reach `MAX_PLACES`, and when a server clears its memory."""
    for tensor in (state.owners, state.buckets, state.end, state.slots[:, at.GROUP : at.SPAN_END + 1]):
        tensor.zero_()


def begin(state: State, slots: Tensor, generations: Tensor, owners: Tensor, starts: Tensor) -> None:
    """Reset slots, [N] int64, for new requests of these generations, owners and lengths of references, [N] int32."""
    facts = torch.zeros(len(slots), at.FACTS, dtype=torch.int32, device=slots.device)
    half = torch.full_like(starts, at.LEVELS // 2)
    facts[:, : at.END + 1] = torch.stack((generations, owners, starts, half, starts), 1)
    state.slots[slots] = facts
    state.scopes[slots] = 0
    own_rows(state)[slots] = 0


def own_rows(state: State) -> Tensor:
    """Return a view of the rows of counts of the engine's tokens, [S, G, 2]."""
    engine_tokens = engine_tokens_of(state)
    own: Tensor = state.counts[TOKENS_END + engine_tokens :].view(state.slots.shape[0], engine_tokens, 2)
    return own


def engine_tokens_of(state: State) -> int:
    """Return G, see `allocate`."""
    found: int = (state.counts.shape[0] - TOKENS_END) // (state.slots.shape[0] + 1)
    return found


def halve(state: State) -> None:
    """Halve the rows of counts with many tries, so that older tries count less."""
    own = own_rows(state).view(-1, 2)
    common = state.counts[TOKENS_END : len(state.counts) - len(own)]
    for rows, max_tries in (
        (state.counts[:CONTEXTS], at.MAX_TRIES),
        (state.counts[CONTEXTS:TOKENS_END], at.MAX_TOKEN_TRIES),
        (common, at.MAX_TRIES),
        (own, at.MAX_ENGINE_TRIES),
    ):
        rows >>= (rows[:, 1:] > max_tries * at.UNIT).int()


def join(state: State, slot: int, group: int, number: int, prompt: int, room: int) -> None:
    """Make a slot's text a member of a group, whose texts draft from each other's tokens from now on.

    Args:
        state: see `State`.
        slot: the slot, whose request has begun.
        group: an owner number, of this group alone.
        number: the number of members before it.
        prompt: the place in the text from which on tokens are shared.
        room: tokens to share; the ring moves on by as many, up to a sixteenth of its capacity.
    """
    size = min(room + at.CONTEXT + 1, len(state.ring) // 16)
    places = torch.arange(-(-size // at.GRANULE) * at.GRANULE, device=state.ring.device)
    index = (state.end + places) & (len(state.ring) - 1)
    state.ring[index] = -1
    state.owners[index[:: at.GRANULE] // at.GRANULE] = group
    end = state.end + len(places)
    facts = state.slots[slot]
    facts[at.GROUP] = group
    facts[at.ENTRY] = (group * at.SPARED + number % at.USED) % at.ENTRIES
    facts[at.PROMPT] = prompt
    facts[at.WRITTEN] = facts[at.START].clamp(min=prompt - at.CONTEXT)
    facts[at.SPAN : at.SPAN + 1] = state.end
    facts[at.SPAN_END : at.SPAN_END + 1] = end
    state.end.copy_(end)


def leave(state: State, slot: int) -> None:
    """Take a slot out of its group: it shares no more tokens, and none are drafted from those that it shared."""
    facts = state.slots[slot]
    capacity = len(state.ring)
    places = facts[at.SPAN] + torch.arange(0, capacity // 16, at.GRANULE, device=state.ring.device)
    is_own = (facts[at.GROUP] > 0) & (places < facts[at.SPAN_END]) & (places >= state.end - capacity)
    granules = (places & (capacity - 1)) // at.GRANULE
    state.owners[granules] = torch.where(is_own, 0, state.owners[granules])
    facts[at.GROUP] = 0


def views(memory: Any) -> Any:
    """Return numpy views of tensors on the CPU, which the forms for CPUs take."""
    return type(memory)(*(tensor.numpy() for tensor in memory))


ENDS = 64
"""Tokens at the end of each text that `checksums` reads."""


def checksums(state: State, texts: Tensor, slots: Tensor) -> dict[str, Tensor]:
    """Return sums of all that drafts depend on, each [] int32, which tensor-parallel ranks that each draft compare.

    They do not depend on the slots' numbers and earlier occupants.

    Args:
        state: the memory, without corpora.
        texts: [S, L] int32.
        slots: [B] int64, those of a step's rows, in their order.
    """
    facts = state.slots[slots]
    own = own_rows(state)
    common = state.counts[: len(state.counts) - own.shape[0] * own.shape[1]]
    places = facts[:, at.END, None] - 1 - torch.arange(ENDS, dtype=torch.int32, device=slots.device)
    ends = torch.where(places < 0, 0, texts[slots[:, None], places.clamp(min=0)])
    tables = [checksum(table) for table in (state.ring, state.owners, state.buckets, state.end)]
    return {
        "texts": checksum(ends),
        "requests": checksum(facts[:, at.OWNER :]) + checksum(own[slots]),  # generations differ with the slots' use
        "hit rates": checksum(common),
        "responses": torch.stack(tables).sum(dtype=torch.int32),
    }
