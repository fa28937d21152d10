"""Jump-forward strings: the canonical tokenization of a string that a grammar forces."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

TAIL = 8
"""The number of newest tokens that are used as context."""

_MOST_REMEMBERED = 1024


class JumpForwardTokenizer:
    """Tokenizes strings as the tokenizer would within the whole output, and caches the latest results.

    Args:
        tokenizer: has Hugging Face's methods "encode" with `add_special_tokens`, "decode" and "convert_ids_to_tokens".
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
