"""What a proposer in an engine's stream has of each row's text: steps without drafts leave it backlog."""

from __future__ import annotations

import numpy as np

from specplug.pipeline.cpu.host_function import MOST_NEW
from specplug.runtime.stream_steps import MOST_MISSED

LONGEST = 16
"""Tokens that a row gets in every step that ingests."""


class StreamLimits:
    """The backlogs of all rows, under the limits of `specplug.runtime.stream_steps`."""

    def __init__(self):
        self._backlog, self._missed = np.zeros(0, int), 0

    def step(self, emitted, *, drafts):
        """End a step in which rows emitted so many tokens, [B]; return [B], whether they can draft for the next one."""
        if len(emitted) != len(self._backlog):
            self._backlog, self._missed = np.zeros(len(emitted), int), 0
        self._backlog += emitted
        self._missed += 1
        if drafts or self._missed >= MOST_MISSED:
            self._missed = 0
            self._ingest()
        return self._backlog == 0 if drafts else np.zeros(len(emitted), bool)

    def _ingest(self):
        left = MOST_NEW
        for row, backlog in enumerate(self._backlog):
            taken = min(backlog, max(left, LONGEST))
            self._backlog[row] -= taken
            left -= taken
