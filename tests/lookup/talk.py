"""Requests of the lookup in words of a few tokens, for examples."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from specplug.lookup import layout as at

ROOM = 300
"""Most tokens of a text."""


class Talk:
    """One form of the lookup, with one row per step.

    The last slot's text holds what is remembered.
    """

    def __init__(self, form: ModuleType, slots: int = 2, ring: int = 256, draft_length: int = 8) -> None:
        self.form = form
        self.state = at.allocate(slots + 1, ROOM, draft_length, ring)
        self.texts = torch.full((slots + 1, ROOM), 77, dtype=torch.int32)
        self.lengths, self.begun = [0] * (slots + 1), 0
        self.generation: dict[int, int] = {}
        self.confidence: list[float] = []
        self.sources: list[int] = []

    def begin(self, slot: int, text: Sequence[int], owner: int = 0, references: Sequence[int] = ()) -> None:
        """Begin a request with a prompt, and with references, which end with -1."""
        self.begun += 1
        self.lengths[slot] = 0
        facts = (torch.tensor([it], dtype=torch.int32) for it in (self.begun, owner, len(references)))
        at.begin(self.state, torch.tensor([slot]), *facts)
        self.generation[slot] = self.begun
        self.extend(slot, [*references, *text])

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens."""
        end = self.lengths[slot] + len(tokens)
        self.texts[slot, self.lengths[slot] : end] = torch.tensor(list(tokens), dtype=torch.int32)
        self.lengths[slot] = end

    def draft(self, slot: int, limit: int = 99, *, generation: int | None = None, vocab_size: int = 1000) -> list[int]:
        """Return a row's draft; its confidence and sources are kept."""
        generation = self.generation[slot] if generation is None else generation
        facts = (torch.tensor([it], dtype=torch.int32) for it in (generation, self.lengths[slot], limit))
        rows, most = at.Rows(torch.tensor([slot]), *facts), self.state.chain.shape[2]
        drafts = at.Drafts(
            torch.full((1, most), -7),
            torch.full((1, most), torch.nan),
            *torch.full((2, 1, most), -7, dtype=torch.int32),
        )._replace(lengths=torch.full((1,), -7, dtype=torch.int32))
        views = at.views(self.state), self.texts.numpy(), at.views(rows)
        self.form.scan(*views)
        self.form.draft(*views, at.views(drafts), vocab_size)
        number = int(drafts.lengths[0])
        last = int(self.texts[slot, self.lengths[slot] - 1]) if self.lengths[slot] else 0
        assert drafts.ids[0, number:].tolist() == [max(last, 0)] * (most - number)
        assert drafts.confidence[0, number:].tolist() == [0] * (most - number)
        assert drafts.sources[0, number:].tolist() == [-1] * (most - number)
        self.confidence, self.sources = drafts.confidence[0, :number].tolist(), drafts.sources[0, :number].tolist()
        return drafts.ids[0, :number].tolist()

    def remember(self, owner: int, text: Sequence[int], number: int, prompt: Sequence[int] = ()) -> None:
        """Remember a response after a prompt."""
        slot = len(self.lengths) - 1
        self.lengths[slot] = 0
        self.extend(slot, [*prompt, *text])
        span = 0, len(prompt), self.lengths[slot]
        self.form.remember(at.views(self.state), self.texts.numpy(), slot, *span, owner, number)
