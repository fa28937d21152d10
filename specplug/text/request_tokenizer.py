"""Tokenization while an engine serves: of texts in requests, and of strings that a grammar forces."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import RequestError
from specplug.text.retokenized import pieces


class RequestTokenizer:
    """A copy of the engine's tokenizer, for the texts of requests, without special tokens.

    vLLM's own tokenizer serves one thread at a time and is copied on demand for a second one, so a server's event loop
    would wait while a long text is tokenized.  This one works piece by piece.
    """

    def __init__(self, original: Callable[[], Any]) -> None:
        """Take a function that returns the engine's tokenizer, or None if the server runs without one."""
        self._original = original
        self._own: Any = None

    def copy(self) -> Any:
        """Return the copy.  Creating it takes up to a second and holds the GIL, so servers do it at start-up."""
        if self._own is None:
            self._own = copy.deepcopy(self._original())
            if hasattr(self._own, "model_max_length"):
                self._own.model_max_length = sys.maxsize  # references may be longer than the context: no warning
        return self._own

    def __call__(self, text: str, max_tokens: int = sys.maxsize) -> npt.NDArray[np.int32]:
        """Return [n] int32; once there are more than `max_tokens`, the rest of the text is not tokenized.

        A long text is cut at the ends of lines (see `pieces`).  The tokens at a cut may differ from those
        of the whole text, which costs a draft token or two there.

        Raises:
            RequestError: the server runs without a tokenizer.
        """
        tokenizer = self.copy()
        if tokenizer is None:
            raise RequestError.build(
                "a reference text needs a tokenizer", found="a server without one", remedy="Send its token ids"
            )
        ids = [np.empty(0, dtype=np.int32)]
        for piece in pieces(text):
            ids.append(np.array(tokenizer.encode(piece, add_special_tokens=False), dtype=np.int32))
            max_tokens -= len(ids[-1])
            if max_tokens < 0:
                break
        return np.concatenate(ids)


TAIL = 8
"""The number of newest tokens that are used as context."""

_MOST_REMEMBERED = 1024


class JumpForwardTokenizer:
    """Tokenizes strings as the tokenizer would within the whole output, and caches the latest results.

    `tokenizer` has Hugging Face's methods `encode` with `add_special_tokens`, `decode` and `convert_ids_to_tokens`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[tuple[str, tuple[int, ...]], tuple[int, ...]] = OrderedDict()

    def __call__(self, text: str, after: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of `text` after the tokens `after`, of which the newest `TAIL` are used."""
        if not text:
            return ()
        tail = tuple(after[-TAIL:])
        found = self._known.get((text, tail))
        if found is None:
            found = self._known[text, tail] = self._tokenized(text, tail)
            if len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)
        return found

    def continues(self, token: int, others: Sequence[int]) -> bool:
        """Return whether the text of one of the `others` starts with that of `token` and is longer."""
        own, *pieces = self._tokenizer.convert_ids_to_tokens([token, *others])
        return any(piece != own and piece.startswith(own) for piece in pieces if piece is not None)

    def _tokenized(self, text: str, tail: tuple[int, ...]) -> tuple[int, ...]:
        """Tokenize tail and text together; if that changes the tail's tokens, tokenize the text alone."""
        before = self._tokenizer.decode(list(tail))
        whole = tuple(self._tokenizer.encode(before + text, add_special_tokens=False))
        if whole[: len(tail)] == tail:
            return whole[len(tail) :]
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
