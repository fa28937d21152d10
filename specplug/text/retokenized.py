"""Long texts in pieces, and the tokens that a text begins with when a space or a new line comes before it.

A passage that begins with "The cat" is `The`, ` cat`, ... by itself, but ` The`, ` cat`, ... in an answer that quotes
it.  A re-tokenized prefix holds such tokens up to where they agree with the text's own again, and a few more, so that a
match that starts in the prefix is long enough to continue in the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

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


LEADS = (" ", "\n")
IN_STEP = 8
"""Number of tokens that a prefix keeps after it agrees with its text."""

MAX_TOKENS = 64
"""The maximum number of tokens of a prefix, which applies if the two do not agree soon."""

_SHIFTS = range(-8, 9)
HEAD = 256
"""The maximum number of characters of a text that are tokenized again."""

_DISTURBED = 4  # last tokens of a cut text that may differ from the whole text's


def with_leads(text: str) -> tuple[str, ...]:
    """Return the texts to tokenize for a text's prefixes: at most `HEAD` of its characters after each of `LEADS`."""
    if not text:
        return ()
    head = next(pieces(text, HEAD))
    return tuple(lead + head for lead in LEADS)


def retokenized_prefixes(body: Sequence[int], tokenized: Sequence[Sequence[int]], *, cut: bool) -> list[Sequence[int]]:
    """Return a text's re-tokenized prefixes.

    Args:
        body: the text's tokens.
        tokenized: the tokens of each of `with_leads(text)`.
        cut: whether the text continues after its head.

    Returns:
        The first tokens of each.  Duplicates are omitted, and so are prefixes that agree with the text from its first
        token on, which differ only in the tokens before the text.
    """
    found: list[Sequence[int]] = []
    for tokens in filter(len, tokenized):
        start, own = _in_step(tokens, body, cut)
        prefix = tokens[: min(start + IN_STEP, MAX_TOKENS)]
        if own and len(prefix) > 1 and prefix not in found:
            found.append(prefix)
    return found


def _in_step(tokens: Sequence[int], body: Sequence[int], cut: bool) -> tuple[int, int]:
    """Return the positions in `tokens` and `body` from which both continue equally; their ends if there are none."""
    if not cut:
        return _meeting(tokens, body, len(tokens), len(body))
    ends = range(max(1, len(tokens) - _DISTURBED), len(tokens) + 1)
    return min(_meeting(tokens, body, end, end + shift) for shift in _SHIFTS for end in ends)


def _meeting(tokens: Sequence[int], body: Sequence[int], end: int, own_end: int) -> tuple[int, int]:
    """Return the starts of the equal run that ends at `end` in `tokens` and at `own_end` in `body`."""
    if not 0 < own_end <= len(body) or tokens[end - 1] != body[own_end - 1]:
        return len(tokens), len(body)
    while end > 0 and own_end > 0 and tokens[end - 1] == body[own_end - 1]:
        end = end - 1
        own_end = own_end - 1
    return end, own_end


NO_BREAK_SPACE = "\u00a0"


def normalized(text: str) -> str:
    """Return a text in the form in which models write it: new lines for CRLF, and spaces for no-break ones.

    Models write the former even when they quote the latter, and a draft would be rejected at each of them.
    """
    return text.replace("\r\n", "\n").replace(NO_BREAK_SPACE, " ")
