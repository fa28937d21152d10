"""Drivers that pass partial, poisoned or overwritten batches to the proposer."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from specplug.testing.batches import POISON
from specplug.testing.driver import Driver
from specplug.types.batch import EngineBatch
from specplug.types.draft import Draft


class WindowDriver(Driver):
    """Passes only each row's newest tokens, in tables that begin with them and are poisoned after them."""

    def handed(self, batch: EngineBatch) -> EngineBatch:
        """Return the windows."""
        windows = batch.to_host(newest_only=True)
        _outside(windows.tokens, 0, windows.num_new)
        return windows


class OldTextDriver(Driver):
    """Passes whole tables in which old text is poisoned."""

    def handed(self, batch: EngineBatch) -> EngineBatch:
        """Return the tables."""
        tables = batch.to_host()
        _outside(tables.tokens, tables.lengths - tables.num_new, tables.lengths)
        return tables


class OverwritingDriver(Driver):
    """Overwrites all tensors of a batch after its step, as an engine with persistent buffers may do."""

    def run(self, batch: EngineBatch, draft_length: int, caps: Tensor) -> Draft:
        """Pass one batch to the proposer, then overwrite it."""
        draft = super().run(batch, draft_length, caps)
        for field in fields(batch):
            tensor = getattr(batch, field.name)
            if isinstance(tensor, Tensor):
                tensor.fill_(POISON)  # a float represents it exactly, and a bool becomes True
        return draft


def _outside(tokens: Tensor, begin: Tensor | int, end: Tensor) -> None:
    """Poison the entries outside [begin, end) in each row of `tokens` [B, L]; both bounds are [B]."""
    places = torch.arange(tokens.shape[1])
    first = begin[:, None] if isinstance(begin, Tensor) else begin
    tokens.masked_fill_((places < first) | (places >= end[:, None]), POISON)
