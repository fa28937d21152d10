"""Requests of the lookup in words of a few tokens, for examples."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import torch

from specplug.lookup import layout as at
from specplug.lookup import storage

ROOM = 300
"""Most tokens of a text."""


class Talk:
    """One form of the lookup, with one row per step.

    The last slot's text holds what is remembered.
    """

    def __init__(
        self,
        form: ModuleType,
        slots: int = 2,
        ring: int = 256,
        draft_length: int = 8,
        *,
        engine_tokens: int = 0,
        trees: bool = False,
    ) -> None:
        self.form, self.trees, self.engine_tokens = form, trees, engine_tokens
        self.state = storage.allocate(slots + 1, ROOM, draft_length, ring, engine_tokens=engine_tokens, trees=trees)
        self.texts, self.table = torch.full((2, slots + 1, ROOM), 77, dtype=torch.int32)
        self.lengths, self.known, self.begun = [0] * (slots + 1), [0] * (slots + 1), 0
        self.generation: dict[int, int] = {}
        self.confidence: list[float] = []
        self.sources: list[int] = []
        self.parents: list[int] = []

    def begin(self, slot: int, text: Sequence[int], owner: int = 0, references: Sequence[int] = ()) -> None:
        """Begin a request with a prompt, and with references, which end with -1."""
        self.begun += 1
        self.lengths[slot] = self.known[slot] = 0
        self.texts[slot, : len(references)] = torch.tensor(references, dtype=torch.int32)
        facts = (torch.tensor([it], dtype=torch.int32) for it in (self.begun, owner, len(references)))
        storage.begin(self.state, torch.tensor([slot]), *facts)
        self.generation[slot] = self.begun
        self.extend(slot, text)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens."""
        end = self.lengths[slot] + len(tokens)
        self.table[slot, self.lengths[slot] : end] = torch.tensor(list(tokens), dtype=torch.int32)
        self.lengths[slot] = end

    def cut(self, slot: int, length: int) -> None:
        """Withdraw tokens."""
        self.lengths[slot] = length
        self.known[slot] = min(self.known[slot], length)

    def draft(
        self,
        slot: int,
        limit: int = 99,
        *,
        generation: int | None = None,
        vocab_size: int = 1000,
        engine_ids: Sequence[int] = (),
    ) -> list[int]:
        """Return a row's draft; its confidence, sources and parents are kept."""
        generation = self.generation.get(slot, 0) if generation is None else generation
        new = self.lengths[slot] - self.known[slot]
        facts = (torch.tensor([it], dtype=torch.int32) for it in (generation, self.lengths[slot], limit))
        rows, most = at.Rows(torch.tensor([slot]), *facts), self.state.chain.shape[2]
        ints = (torch.tensor(it, dtype=torch.int32) for it in ([0], [new]))
        source = at.Source(self.table, torch.tensor([slot]), *ints)
        drafts = storage.drafts_of(1, most, trees=self.trees)
        for tensor in drafts:
            tensor.fill_(-7)
        views = storage.views(self.state), self.texts.numpy(), storage.views(rows)
        self.form.ingest(*views, storage.views(source), True)
        self.form.scan(*views)
        self.form.search(*views)
        self.form.draft(*views, storage.views(drafts), vocab_size)
        if engine_ids:
            padded = np.array([[*engine_ids, *[-1] * (self.engine_tokens - len(engine_ids))]], np.int32)
            self.form.append(*views, padded, storage.views(drafts))
            self.form.scan(*views)
            self.form.search(*views)
            self.form.draft(*views, storage.views(drafts), vocab_size)
        if generation == self.generation.get(slot):
            self.known[slot] = self.lengths[slot]
        number = int(drafts.lengths[0])
        assert drafts.ids[0, number:].tolist() == [-1] * (most - number)
        assert drafts.confidence[0, number:].tolist() == [0] * (most - number)
        assert drafts.sources[0, number:].tolist() == [-1] * (most - number)
        self.confidence, self.sources = drafts.confidence[0, :number].tolist(), drafts.sources[0, :number].tolist()
        if self.trees:
            assert drafts.parents[0, number:].tolist() == [-1] * (most - number)
            self.parents = drafts.parents[0, :number].tolist()
        return drafts.ids[0, :number].tolist()

    def join(self, slot: int, group: int, number: int, prompt: int, room: int = 15) -> None:
        """Let a slot join a group; it shares the tokens from `prompt` on."""
        storage.join(self.state, slot, group, number, prompt, room)

    def remember(self, owner: int, text: Sequence[int], number: int, prompt: Sequence[int] = ()) -> None:
        """Remember a response after a prompt."""
        slot = len(self.lengths) - 1
        whole = [*prompt, *text]
        self.texts[slot, : len(whole)] = torch.tensor(whole, dtype=torch.int32)
        self.state.slots[slot, at.END] = len(whole)
        span = 0, len(prompt), len(whole)
        self.form.remember(storage.views(self.state), self.texts.numpy(), slot, *span, owner, number)
