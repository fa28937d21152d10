"""Rows of traces as tests compare them."""

from __future__ import annotations

from pathlib import Path

from specplug.trace import TraceRow
from specplug.trace import read_trace as read


def read_trace(path: Path) -> list[TraceRow]:
    """Return the rows of a trace that have drafts."""
    return [row for row in read(path) if row.ids]
