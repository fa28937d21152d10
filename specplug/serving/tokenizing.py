"""Reference texts to token ids, piece by piece, so that a long text does not keep other threads from running."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import RequestError

PIECE = 1 << 16
_SEARCHED = 1 << 12
_LINE = re.compile(r"\n(?=\S)")
_WORD = re.compile(r"(?<=\S)(?=\s)")


class Tokenizer:
    """The engine's tokenizer, for the texts of requests, without special tokens.

    It works on a copy.  vLLM lends its own to one thread at a time and copies it on the spot for a second one: while a
    long text were tokenised, a server's event loop could wait for that.
    """

    def __init__(self, original: Callable[[], Any]) -> None:
        """Take what returns the engine's tokenizer, or None where the server runs without one."""
        self._original = original
        self._own: Any = None

    def copy(self) -> Any:
        """Return the copy.  Making it takes up to a second and holds the interpreter: servers do it when they start."""
        if self._own is None:
            self._own = copy.deepcopy(self._original())
            if hasattr(self._own, "model_max_length"):
                self._own.model_max_length = sys.maxsize  # references may be longer than the context: no warning
        return self._own

    def __call__(self, text: str) -> npt.NDArray[np.int32]:
        """Return [n] int32.

        A long text is cut at ends of lines into pieces of about `PIECE` characters.  The tokens at a cut may be others
        than those of the whole text, which costs a draft token or two there.

        Raises:
            RequestError: the server runs without a tokenizer.
        """
        tokenizer = self.copy()
        if tokenizer is None:
            raise RequestError.build(
                "a reference text needs a tokenizer", found="a server without one", remedy="Send its token ids"
            )
        ids = [np.array(tokenizer.encode(piece, add_special_tokens=False), dtype=np.int32) for piece in pieces(text)]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """Yield a text in order, in pieces of at most `size` characters, cut where a line ends, or else a word, if any."""
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
