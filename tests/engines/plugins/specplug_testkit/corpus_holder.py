"""A proposer that holds corpora."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specplug.host import HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.types.request import Request

NEEDED = 4
"""Tokens at a text's end that are looked for."""


class CorpusHolder(HostProposer):
    """Drafts what follows the last `NEEDED` tokens in a corpus.

    Corpora whose names begin with "raise", "exit" and "strange" do what they say when they are added; "stay" raises
    when it is removed.
    """

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._corpora: dict[str, tuple[Tokens, ...]] = {}

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> Tokens | list[int]:
        end = tokens[-NEEDED:]
        for documents in self._corpora.values():
            for text in documents:
                if len(end) == NEEDED < len(text):
                    windows = np.lib.stride_tricks.sliding_window_view(text[:-1], NEEDED)
                    found = np.flatnonzero((windows == end).all(1))
                    if found.size:
                        start = int(found[0]) + NEEDED
                        return text[start : start + limit]
        return []

    def add_corpus(self, name: str, documents: Sequence[Tokens]) -> int:
        if name.startswith("raise"):
            raise ValueError("this corpus is not to my taste")
        if name.startswith("exit"):
            raise SystemExit(3)
        self._corpora = {**self._corpora, name: tuple(documents)}
        return "many" if name.startswith("strange") else np.int64(self.list_corpora()[name])

    def remove_corpus(self, name: str) -> None:
        if name.startswith("stay"):
            raise ValueError("this corpus stays")
        self._corpora = {other: documents for other, documents in self._corpora.items() if other != name}

    def list_corpora(self) -> dict[str, int]:
        return {name: sum(map(len, documents)) for name, documents in self._corpora.items()}
