"""Drivers that hand a batch over in other ways than whole, in tables that stay as they are."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from specplug.testing.batches import POISON
from specplug.testing.driver import Driver
from specplug.types.batch import BatchView
from specplug.types.draft import Draft


class WindowDriver(Driver):
    """Hands over each row's newest tokens only, in tables that begin with them; beyond them is poison."""

    def handed(self, batch: BatchView) -> BatchView:
        """Return the windows."""
        windows = batch.to_host(newest_only=True)
        _outside(windows.tokens, 0, windows.num_new)
        return windows


class OldTextDriver(Driver):
    """Hands over whole tables whose old text is poison."""

    def handed(self, batch: BatchView) -> BatchView:
        """Return the tables."""
        tables = batch.to_host()
        _outside(tables.tokens, tables.lengths - tables.num_new, tables.lengths)
        return tables


class OverwritingDriver(Driver):
    """Overwrites all tensors of a batch when its step is over, as an engine may that keeps them in buffers."""

    def run(self, batch: BatchView, draft_length: int, caps: Tensor) -> Draft:
        """Hand the proposer one batch, and take it away."""
        draft = super().run(batch, draft_length, caps)
        for field in fields(batch):
            tensor = getattr(batch, field.name)
            if isinstance(tensor, Tensor):
                tensor.fill_(POISON)  # a float holds it, and a truth value is true then
        return draft


def _outside(tokens: Tensor, begin: Tensor | int, end: Tensor) -> None:
    """Poison what lies before `begin` [B] or at and beyond `end` [B] in each row of `tokens` [B, L]."""
    places = torch.arange(tokens.shape[1])
    first = begin[:, None] if isinstance(begin, Tensor) else begin
    tokens.masked_fill_((places < first) | (places >= end[:, None]), POISON)
