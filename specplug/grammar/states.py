"""Grammar states: what they do, how a draft follows one, the plain reference, and a base for masks of legal tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from specplug.text.request_tokenizer import JumpForwardTokenizer
from specplug.types.draft import NO_TOKEN

CERTAIN = 1.0
LIKELY = 0.98
"""Confidences of forced tokens, and of the canonical tokens of jump-forward strings."""


class GrammarState(Protocol):
    """The state of a grammar after one request's text."""

    def advance(self, token: int) -> bool:
        """Advance by a legal token; for an illegal token, return False and keep the state."""

    def rollback(self, count: int) -> None:
        """Undo the `count` newest tokens."""

    def forced(self) -> int:
        """Return the only legal token; `NO_TOKEN` if several tokens are legal, or none."""

    def jump_forward(self, after: Sequence[int]) -> Sequence[int]:
        """Return the canonical tokens of the jump-forward string; the state has advanced by the tokens `after`."""

    def is_open(self, token: int) -> bool:
        """Return whether the text of `token` is a prefix of another legal token's, so its tokenization is uncertain."""

    @property
    def is_ended(self) -> bool:
        """True if the output is complete."""


class Followed(NamedTuple):
    """The tokens that a grammar drafts after the legal part of one row's draft, and their confidences."""

    added: list[int]
    confidence: list[float]


def follow(state: GrammarState, drafted: Sequence[int], room: int) -> Followed:
    """Follow a draft as far as it is legal, and draft the tokens that the grammar forces after it.

    A token that completes the output is not added: the step that verifies the token before it emits it anyway.

    Args:
        state: the state after the text that the draft continues; it is restored on return.
        drafted: at most `room` tokens.
        room: the maximum number of tokens of the row in total.
    """
    path: list[int] = []
    try:
        for token in drafted:
            if not state.advance(token):
                break
            path.append(token)
        kept = len(path)
        levels = list[float]()
        while len(path) < room and not state.is_ended:
            forced = state.forced()
            level, tokens = (LIKELY, state.jump_forward(path)) if forced == NO_TOKEN else (CERTAIN, (forced,))
            before = len(path)
            for place, token in enumerate(tokens[: room - before], 1):
                is_last = level < CERTAIN and place == len(tokens)  # the following text may belong to it
                if (is_last and state.is_open(token)) or not state.advance(token):
                    break
                path.append(token)
                levels.append(level)
            if len(path) == before:
                break
        added = path[kept:]
        if levels and state.is_ended:
            added = added[:-1]
            levels = levels[:-1]
    finally:
        if path:
            state.rollback(len(path))
    return Followed(added, levels)


WORD = 32
"""Tokens per word of a bit mask."""

_MANY = 64  # with more legal tokens than this, one of them is assumed to continue any token


class AllowedState:
    """The plain reference: a `GrammarState` from a function that lists the legal tokens after a text.

    Args:
        allowed: returns the legal ids after the whole text; it is called only with legal texts.  If it returns none,
            no token is legal.
        text: the text so far.
        ends: ids that end the output, which the function need not know.
    """

    def __init__(
        self, allowed: Callable[[Sequence[int]], Collection[int]], text: Sequence[int], ends: Collection[int] = ()
    ) -> None:
        self._allowed = allowed
        self._text = list(text)
        self._ends = frozenset(ends)
        self._start = len(text)
        self._known: dict[int, frozenset[int]] = {}

    def _here(self) -> frozenset[int]:
        length = len(self._text)
        if length not in self._known:
            self._known[length] = frozenset(self._allowed(self._text))
        return self._known[length]

    def advance(self, token: int) -> bool:
        if self.is_ended or token not in self._here():
            return False
        self._text.append(token)
        return True

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._known.pop(len(self._text), None)
            self._text.pop()

    def forced(self) -> int:
        here = self._here()
        return next(iter(here)) if len(here) == 1 else NO_TOKEN

    def jump_forward(self, after: Sequence[int]) -> Sequence[int]:
        return ()  # the function lists tokens, not text

    def is_open(self, token: int) -> bool:
        return False

    @property
    def is_ended(self) -> bool:
        return len(self._text) > self._start and self._text[-1] in self._ends


class MaskState(ABC):
    """A `GrammarState` of an engine's grammar, which gives the legal tokens as a bit mask.

    `canonical` tokenizes jump-forward strings, None disables them; `tail` holds the newest tokens of the output, as
    many as `canonical` reads.
    """

    def __init__(
        self, vocab_size: int, canonical: JumpForwardTokenizer | None = None, tail: Sequence[int] = ()
    ) -> None:
        self._vocab_size = vocab_size
        self._mask = torch.empty(1, -(-vocab_size // WORD), dtype=torch.int32)
        self._words: npt.NDArray[np.int32] = self._mask[0].numpy()
        self._canonical = canonical
        self._tail = list(tail)
        self._is_filled = False

    @abstractmethod
    def _fill(self) -> None:
        """Overwrite `self._mask` [1, ceil(V / 32)] int32, whose bits are all set, with the legal tokens."""

    @abstractmethod
    def _accept(self, token: int) -> bool:
        """Advance by a token that the mask allows; return whether it succeeded."""

    @abstractmethod
    def _take_back(self, count: int) -> None:
        """Undo the `count` newest tokens, at least one."""

    @abstractmethod
    def _jump_forward(self) -> str | Sequence[int]:
        """Return the string that must come next, or its tokens; empty if it is not known."""

    @property
    @abstractmethod
    def is_ended(self) -> bool:
        """True if the output is complete."""

    def advance(self, token: int) -> bool:
        if self.is_ended or not bit(self._here(), token) or not self._accept(token):
            return False
        self._is_filled = False
        return True

    def rollback(self, count: int) -> None:
        if count:
            self._take_back(count)
            self._is_filled = False

    def forced(self) -> int:
        return NO_TOKEN if self.is_ended else only_bit(self._here())

    def jump_forward(self, after: Sequence[int]) -> Sequence[int]:
        coming = self._jump_forward()
        if not isinstance(coming, str):
            return coming
        return () if self._canonical is None else self._canonical(coming, [*self._tail, *after])

    def is_open(self, token: int) -> bool:
        if self._canonical is None:
            return False
        legal = bits_of(self._here(), _MANY)
        return legal is None or self._canonical.continues(token, [other for other in legal if other < self._vocab_size])

    def _here(self) -> npt.NDArray[np.int32]:
        if not self._is_filled:
            self._words.fill(-1)
            self._fill()
            self._is_filled = True
        return self._words


def bit(words: npt.NDArray[np.int32], token: int) -> bool:
    """Return whether a bit mask [ceil(V / 32)] allows a token."""
    return 0 <= token < len(words) * WORD and bool(int(words[token // WORD]) >> (token % WORD) & 1)


def only_bit(words: npt.NDArray[np.int32]) -> int:
    """Return the only token that a bit mask [ceil(V / 32)] allows; `NO_TOKEN` if it allows several, or none."""
    if np.count_nonzero(words) != 1:
        return NO_TOKEN
    place = int(np.flatnonzero(words)[0])
    word = int(words[place]) & 0xFFFFFFFF
    return place * WORD + word.bit_length() - 1 if word & (word - 1) == 0 else NO_TOKEN


def bits_of(words: npt.NDArray[np.int32], max_count: int) -> list[int] | None:
    """Return the tokens that a bit mask [ceil(V / 32)] allows; None if they certainly number more than `max_count`."""
    if np.count_nonzero(words) > max_count:
        return None
    (places,) = np.nonzero(words)
    rows, bits = np.nonzero(np.unpackbits(words[places].view(np.uint8), bitorder="little").reshape(-1, WORD))
    found: list[int] = (places[rows] * WORD + bits).tolist()
    return found if len(found) <= max_count else None
