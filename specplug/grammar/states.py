"""States of grammars: the plain reference, and those of engines that tell what is legal by bit masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specplug.types.draft import NO_TOKEN

WORD = 32
"""Tokens per word of a bit mask."""


class AllowedState:
    """The plain reference: a state from a function that lists the tokens that are legal behind a text.

    Args:
        allowed: of the whole text, returns the legal ids; it is asked about legal texts only.  Nothing is legal where
            it returns nothing.
        text: the text so far.
        ends: ids that end the output, of which the function may know nothing.
    """

    def __init__(
        self, allowed: Callable[[Sequence[int]], Collection[int]], text: Sequence[int], ends: Collection[int] = ()
    ) -> None:
        self._allowed, self._text, self._ends, self._start = allowed, list(text), frozenset(ends), len(text)
        self._known: dict[int, frozenset[int]] = {}

    def _here(self) -> frozenset[int]:
        length = len(self._text)
        if length not in self._known:
            self._known[length] = frozenset(self._allowed(self._text))
        return self._known[length]

    def advance(self, token: int) -> bool:
        """Go on by a token that is legal here; return False, and stay, for any other."""
        if token not in self._here():
            return False
        self._text.append(token)
        return True

    def rollback(self, count: int) -> None:
        """Take back the `count` newest tokens."""
        for _ in range(count):
            self._known.pop(len(self._text), None)
            self._text.pop()

    def forced(self) -> int:
        """Return the one token that is legal here; `NO_TOKEN` where several are, or where none is."""
        here = self._here()
        return next(iter(here)) if len(here) == 1 else NO_TOKEN

    def likely(self, behind: Sequence[int]) -> Sequence[int]:
        """Return nothing: such a function tells tokens, no text."""
        return ()

    def is_open(self, token: int) -> bool:
        """Never: nothing is likely."""
        return False

    @property
    def is_ended(self) -> bool:
        """Whether the output is complete."""
        return len(self._text) > self._start and self._text[-1] in self._ends


class MaskState(ABC):
    """A state of an engine's grammar, which says what is legal by a bit mask.

    Args:
        vocab_size: V.
        usual: cuts forced text into tokens; None to draft none of it.
        tail: the newest tokens of the output, as far as `usual` looks at them.
    """

    def __init__(self, vocab_size: int, usual: UsualCut | None = None, tail: Sequence[int] = ()) -> None:
        self._vocab_size = vocab_size
        self._mask = torch.empty(1, -(-vocab_size // WORD), dtype=torch.int32)
        self._words: npt.NDArray[np.int32] = self._mask[0].numpy()
        self._usual, self._tail = usual, list(tail)
        self._is_filled = False

    @abstractmethod
    def _fill(self) -> None:
        """Write what is legal here over `self._mask` [1, ceil(V / 32)] int32, by which everything is."""

    @abstractmethod
    def _accept(self, token: int) -> bool:
        """Go on by a token that the mask allows; return whether that went well."""

    @abstractmethod
    def _take_back(self, count: int) -> None:
        """Take back the `count` newest tokens, at least one."""

    @abstractmethod
    def _must_come(self) -> str | Sequence[int]:
        """Return the text that must come next, or tokens of it; nothing where it is not known."""

    @property
    @abstractmethod
    def is_ended(self) -> bool:
        """Whether the output is complete."""

    def advance(self, token: int) -> bool:
        """Go on by a token that is legal here; return False, and stay, for any other."""
        if self.is_ended or not bit(self._here(), token) or not self._accept(token):
            return False
        self._is_filled = False
        return True

    def rollback(self, count: int) -> None:
        """Take back the `count` newest tokens."""
        if count:
            self._take_back(count)
            self._is_filled = False

    def forced(self) -> int:
        """Return the one token that is legal here; `NO_TOKEN` where several are, or where none is."""
        return NO_TOKEN if self.is_ended else only_bit(self._here())

    def likely(self, behind: Sequence[int]) -> Sequence[int]:
        """Return the usual cut of the text that must come, `behind` tokens that this state was advanced by."""
        coming = self._must_come()
        if not isinstance(coming, str):
            return coming
        return () if self._usual is None else self._usual(coming, [*self._tail, *behind])

    def is_open(self, token: int) -> bool:
        """Whether a legal token's text goes on behind that of `token`, which then is a doubtful cut."""
        if self._usual is None:
            return False
        legal = bits_of(self._here(), _MANY)
        return legal is None or self._usual.goes_on(token, [other for other in legal if other < self._vocab_size])

    def _here(self) -> npt.NDArray[np.int32]:
        if not self._is_filled:
            self._words.fill(-1)
            self._fill()
            self._is_filled = True
        return self._words


def bit(words: npt.NDArray[np.int32], token: int) -> bool:
    """Whether a token is legal by a bit mask [ceil(V / 32)]."""
    return 0 <= token < len(words) * WORD and bool(int(words[token // WORD]) >> (token % WORD) & 1)


def only_bit(words: npt.NDArray[np.int32]) -> int:
    """Return the one token that a bit mask [ceil(V / 32)] allows; `NO_TOKEN` where it allows several, or none."""
    if np.count_nonzero(words) != 1:
        return NO_TOKEN
    place = int(np.flatnonzero(words)[0])
    word = int(words[place]) & 0xFFFFFFFF
    return place * WORD + word.bit_length() - 1 if word & (word - 1) == 0 else NO_TOKEN


def bits_of(words: npt.NDArray[np.int32], most: int) -> list[int] | None:
    """Return the tokens that a bit mask [ceil(V / 32)] allows; None where they are surely more than `most`."""
    if np.count_nonzero(words) > most:
        return None
    (places,) = np.nonzero(words)
    rows, bits = np.nonzero(np.unpackbits(words[places].view(np.uint8), bitorder="little").reshape(-1, WORD))
    found: list[int] = (places[rows] * WORD + bits).tolist()
    return found if len(found) <= most else None


TAIL = 8
"""How many of the newest tokens are looked at."""

_MOST_CUTS = 1024
_MANY = 64  # legal tokens, among which some surely go on


class UsualCut:
    """Cuts text into tokens as a tokenizer would cut it within the whole output.  Remembers what it cut lately.

    Args:
        tokenizer: Hugging Face's interface: "encode" with `add_special_tokens`, "decode" and "convert_ids_to_tokens".
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: OrderedDict[tuple[str, tuple[int, ...]], tuple[int, ...]] = OrderedDict()

    def __call__(self, text: str, behind: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of `text` behind the tokens `behind`, of which the newest few are looked at."""
        if not text:
            return ()
        tail = tuple(behind[-TAIL:])
        found = self._known.get((text, tail))
        if found is None:
            found = self._known[text, tail] = self._cut(text, tail)
            if len(self._known) > _MOST_CUTS:
                self._known.popitem(last=False)
        return found

    def goes_on(self, token: int, others: Sequence[int]) -> bool:
        """Whether one of the `others` begins with the text of `token` and goes on behind it."""
        own, *pieces = self._tokenizer.convert_ids_to_tokens([token, *others])
        return any(piece != own and piece.startswith(own) for piece in pieces if piece is not None)

    def _cut(self, text: str, tail: tuple[int, ...]) -> tuple[int, ...]:
        """Cut the tail and the text together; where that cuts the tail otherwise than it was cut, the text alone."""
        before = self._tokenizer.decode(list(tail))
        whole = tuple(self._tokenizer.encode(before + text, add_special_tokens=False))
        if whole[: len(tail)] == tail:
            return whole[len(tail) :]
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))
