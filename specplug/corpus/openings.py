"""The other ways in which a text may begin: its first tokens are others behind a space or a new line.

A passage that begins with "The cat" is `The`, ` cat`, ... by itself, but ` The`, ` cat`, ... in an answer that quotes
it.  An opening holds such tokens, up to where they are in step with the text's own again and a few more, so that a
match that starts in the opening is long enough to go on in the text itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from specplug.pieces import pieces

LEADS = (" ", "\n")
IN_STEP = 8
"""Tokens kept from where an opening and its text are the same."""

MAX_TOKENS = 64
"""Tokens of an opening at most, where the two are not in step for long."""

HEAD = 256
_SHIFTS = range(-8, 9)
_DISTURBED = 4  # last tokens of a head that may be others than the text's, since it is cut there


def headed(text: str) -> tuple[str, ...]:
    """Return what is to be tokenised for a text's openings: its first `HEAD` characters or fewer behind `LEADS`."""
    if not text:
        return ()
    head = next(pieces(text, HEAD))
    return tuple(lead + head for lead in LEADS)


def openings(body: Sequence[int], tokenized: Sequence[Sequence[int]], *, cut: bool) -> list[Sequence[int]]:
    """Return the openings of a text, without those that would tell nothing new.

    Args:
        body: the text's tokens.
        tokenized: the tokens of each of `headed(text)`.
        cut: whether the text goes on behind its head.

    Returns:
        For each the first tokens.  Left out are those that are in step from the text's first token on, as they differ
        in what stands before the text only, and repetitions.
    """
    found: list[Sequence[int]] = []
    for tokens in filter(len, tokenized):
        start, own = _in_step(tokens, body, cut)
        opening = tokens[: min(start + IN_STEP, MAX_TOKENS)]
        if own and len(opening) > 1 and opening not in found:
            found.append(opening)
    return found


def _in_step(tokens: Sequence[int], body: Sequence[int], cut: bool) -> tuple[int, int]:
    """Return from where `tokens` go on as `body` does, and from where that is in `body`; their ends if nowhere."""
    if not cut:
        return _meeting(tokens, body, len(tokens), len(body))
    ends = range(max(1, len(tokens) - _DISTURBED), len(tokens) + 1)
    return min(_meeting(tokens, body, end, end + shift) for shift in _SHIFTS for end in ends)


def _meeting(tokens: Sequence[int], body: Sequence[int], end: int, own_end: int) -> tuple[int, int]:
    """Return where the equal run of `tokens` up to `end`, and of `body` up to `own_end`, begins in each."""
    if not 0 < own_end <= len(body) or tokens[end - 1] != body[own_end - 1]:
        return len(tokens), len(body)
    while end > 0 and own_end > 0 and tokens[end - 1] == body[own_end - 1]:
        end, own_end = end - 1, own_end - 1
    return end, own_end
