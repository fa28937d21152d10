"""How much of an output a client saw whose text was cut at a stop string.

Engines cut the text, not the tokens: those that hold the stop string, or lie behind it, are left to be found here, once
per request that ended so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

LEAD = 8
"""Tokens that are decoded in front of those that are looked at, as their text can depend on what precedes them."""

UNFINISHED = "\ufffd"
"""What tokenizers show for bytes that are no whole character."""


def tokens_before_stop(
    output: Sequence[int],
    stop: Sequence[str],
    decode: Callable[[list[int]], str],
    *,
    lead: Sequence[int] = (),
    least: int = 0,
    keep: bool = False,
    newest: int | None = None,
) -> int | None:
    """Return how many tokens the client saw, of an output whose text ends at a stop string.

    A token that holds a part of the stop string is not counted, unless the client gets the stop string.  Where it is
    not clear to which side of the cut a token belongs, it is not counted either.  The text is decoded once; what is
    decoded beside grows with the tokens from the cut on.

    Args:
        output: the tokens, perhaps with some behind the stop.
        stop: the stop strings.
        decode: the text of token ids, as clients get it.
        lead: the prompt's last tokens, where the engine decodes outputs with them in front.
        least: tokens at the beginning that no stop string ends in.
        keep: the client gets the stop string too.
        newest: how many of the last tokens are decoded, where whoever looks for stop strings cannot lag by more; None
            decodes all.  The answer is the same as long as no stop string begins ahead of them.

    Returns:
        None where no stop string is in the text.
    """
    skipped = 0 if newest is None else max(0, len(output) - newest)
    if skipped:
        preceding = [*lead, *output[max(0, skipped - LEAD) : skipped]][-LEAD:]
        found = tokens_before_stop(
            output[skipped:], stop, decode, lead=preceding, least=max(0, least - skipped), keep=keep
        )
        if found != 0:  # else the cut may lie further in front
            return None if found is None else skipped + found
    ids, before = list(output), list(lead)
    prompt = decode(before) if before else ""
    text = decode(before + ids)
    text = text[_common(prompt, text) :]
    first = len(decode(ids[:least]).rstrip(UNFINISHED)) if least else 0
    places = [(text.find(string, max(0, first + 1 - len(string))), len(string)) for string in stop]
    if all(place < 0 for place, _ in places):
        return None
    cut = min(place + keep * size for place, size in places if place >= 0)
    count = _tokens_up_to(ids, text[cut:], decode)
    while count and not decode(ids[count - 1 : count]):  # hidden, such as special tokens
        count -= 1
    return count


def _tokens_up_to(ids: list[int], end: str, decode: Callable[[list[int]], str]) -> int:
    """Return how many tokens lie wholly in front of a text's end `end`: what follows them has all of it."""

    doubtful = end.startswith(UNFINISHED)  # some of its bytes may lie in the token before

    def lie_in_front(count: int) -> bool:
        after = decode(ids[count:])
        return after.endswith(end) and not (doubtful and len(after) == len(end))

    low = high = len(ids)  # `low` lies in front, and `high` does not, once they differ
    step = 1
    while low and not lie_in_front(low):
        low, high, step = max(0, len(ids) - step), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if lie_in_front(middle) else (low, middle)
    return low


def _common(left: str, right: str) -> int:
    """Return the length of the longest common beginning."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
