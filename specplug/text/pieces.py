"""Long texts in pieces, each short enough for one call of a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 16
_SEARCHED = 1 << 12
_LINE = re.compile(r"\n(?=\S)")
_WORD = re.compile(r"(?<=\S)(?=\s)")


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Yield a text in pieces of at most `size` characters, cut at the end of a line if possible, else of a word."""
    start = 0
    while len(text) - start > size:
        stop = _cut(text, start, start + size)
        yield text[start:stop]
        start = stop
    if start < len(text):
        yield text[start:]


def _cut(text: str, start: int, stop: int) -> int:
    low = max(start, stop - _SEARCHED)
    for pattern in (_LINE, _WORD):
        ends = [match.end() for match in pattern.finditer(text, low, stop)]
        if ends and ends[-1] > start:
            return ends[-1]
    return stop
