"""The protocol of grammar states, and a function that follows one row's draft with such a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from specplug.types.draft import NO_TOKEN

CERTAIN, LIKELY = 1.0, 0.98
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
    """A grammar's result for one row.

    Attributes:
        kept: number of legal tokens at the start of the draft.
        added: tokens that the grammar drafts after them.
        confidence: confidence of each added token.
    """

    kept: int
    added: list[int]
    confidence: list[float]


def follow(state: GrammarState, drafted: Sequence[int], room: int) -> Followed:
    """Follow a draft as far as it is legal, and draft the tokens that the grammar forces after it.

    A token that completes the output is not added: the step that verifies the token before it emits it anyway.

    Args:
        state: the state after the text that the draft continues; it is restored on return.
        drafted: at most `room` tokens.
        room: the most tokens of the row in total.
    """
    path: list[int] = []
    try:
        for token in drafted:
            if not state.advance(token):
                break
            path.append(token)
        kept, levels = len(path), list[float]()
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
            added, levels = added[:-1], levels[:-1]
    finally:
        if path:
            state.rollback(len(path))
    return Followed(kept, added, levels)
