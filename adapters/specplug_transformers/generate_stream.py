"""Incremental detokenisation and stop-string detection of one request."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

_UNFINISHED = "\ufffd"  # a tokenizer's output for bytes that do not form a whole character yet


class TextStream:
    """Incremental detokenisation of one request.

    Text is held back while it ends in half a character or in a prefix of a stop string.  A few earlier tokens are
    decoded along as lead-in, because many tokenizers treat the first token of a sequence differently.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        self._start = 0  # index of the first lead-in token
        self._read = 0  # tokens before this index are decoded
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """Add a token; return the text that is now final, and whether a stop string has appeared.

        The text ends before the stop string.
        """
        self._ids.append(token)
        self._held += self._decode_new()
        if (text := self._cut()) is not None:
            return text, True
        keep = self._undecided()
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text, False

    def finish(self) -> tuple[str, bool]:
        """Return the text still held back, and whether a stop string has appeared in it, as `push` does.

        Half a character at the end now counts as text, and may complete a stop string.
        """
        self._held += self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._read])) :]
        self._read = self._start = len(self._ids)
        if (text := self._cut()) is not None:
            return text, True
        text, self._held = self._held, ""
        return text, False

    def _cut(self) -> str | None:
        """Return the held text before the stop string that it completes first, and drop the rest; None without one."""
        found = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if not found:
            return None
        text, self._held = self._held[: min(found, key=itemgetter(0))[1]], ""
        return text

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _decode_new(self) -> str:
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _undecided(self) -> int:
        """Return the length of the longest suffix of the held text that is a prefix of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0
