"""Follows one row's draft with its grammar's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from specplug.types.draft import NO_TOKEN

CERTAIN, LIKELY = 1.0, 0.98
"""Confidences of forced tokens, and of the canonical tokens of jump-forward strings."""


class GrammarState(Protocol):
    """Where a grammar stands behind one request's text, and how it goes on."""

    def advance(self, token: int) -> bool:
        """Go on by a token that is legal here; return False, and stay, for any other."""

    def rollback(self, count: int) -> None:
        """Take back the `count` newest tokens."""

    def forced(self) -> int:
        """Return the one token that is legal here; `NO_TOKEN` where several are, or where none is."""

    def jump_forward(self, after: Sequence[int]) -> Sequence[int]:
        """Return the canonical tokens of the string that must come, `after` tokens that this state was advanced by."""

    def is_open(self, token: int) -> bool:
        """Return whether another legal token's text begins with that of `token`, whose tokenization is then unsure."""

    @property
    def is_ended(self) -> bool:
        """Whether the output is complete."""


class Followed(NamedTuple):
    """What a grammar says of one row.

    Attributes:
        kept: how many tokens of the draft are legal.
        added: what the grammar drafts behind them.
        confidence: of each token added.
    """

    kept: int
    added: list[int]
    confidence: list[float]


def follow(state: GrammarState, drafted: Sequence[int], room: int) -> Followed:
    """Follow a draft as far as it is legal, and draft what the grammar forces behind it.

    A token that completes the output is not added: the step that verifies the one before it emits it anyway.

    Args:
        state: behind the text that the draft continues; it is the same when this returns.
        drafted: at most `room` tokens.
        room: most tokens of the row altogether.
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
                is_last = level < CERTAIN and place == len(tokens)  # what comes behind may belong to it
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
