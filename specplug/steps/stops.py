"""Ends of outputs: tokens emitted after a stop, found on the device, and the visible length of a text cut at a stop.

A row keeps running for a step or two after its end, until the scheduler learns of it.  The tokens that it emits there
reach no client and must not be learnt from.

Engines cut the text at a stop string, not the tokens.  The tokens that hold the stop string or follow it are found
here, once per request that ended at one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

import torch
from torch import Tensor

from specplug.steps.rows import Rows


class StopDetector:
    """Tracks for each of S slots whether the occupant has stopped.  Nothing is read back.

    Args:
        max_slots: S.
        max_draft_length: N, the longest draft; a row emits at most N + 1 tokens per step.
        device: device of the batches.
    """

    def __init__(self, max_slots: int, max_draft_length: int, device: torch.device) -> None:
        self.stopped = torch.zeros(max_slots, dtype=torch.int64, device=device)
        """[S], the generation of each slot that has stopped."""
        self._back = torch.arange(max_draft_length, -1, -1, device=device)

    def after(self, rows: Rows, tokens: Tensor, table_rows: Tensor, lengths: Tensor, emitted: Tensor) -> Tensor:
        """Return [B] int32, the number of a step's emitted tokens that come after a stop.

        Args:
            rows: the B rows.
            tokens: [R, L] int32, the token table.
            table_rows: [B], the row of each request in it.
            lengths: [B] int32, including the emitted tokens.
            emitted: [B] int32.
        """
        slots = rows.device_slots
        place = lengths[:, None] - 1 - self._back  # of the newest N + 1 tokens, oldest first
        newest = tokens[table_rows.long()[:, None].to(tokens.device), place.clamp(min=0).to(tokens.device)]
        fresh = self._back < emitted[:, None]
        stop = (newest.to(slots.device)[:, :, None] == rows.stop_ids[:, None, :]).any(2)
        last = (stop | (place + 1 >= rows.ends[:, None])) & fresh
        ended = self.stopped[slots] == rows.generations
        after_last = last.cumsum(1) > last  # counts the stops up to and including each token
        self.stopped[slots] = torch.where(last.any(1), rows.generations, self.stopped[slots])
        return (fresh & (after_last | ended[:, None])).sum(1, dtype=torch.int32)


LEAD = 8
"""Number of preceding tokens decoded together with the examined ones, whose text can depend on them."""

UNFINISHED = "\ufffd"
"""The replacement character that tokenizers show for an incomplete character."""


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
    """Return the number of tokens that the client saw, of an output whose text ends at a stop string.

    Of several stop strings the one that the text completes first counts, of those the first listed.
    A token that holds a part of the stop string is not counted unless the client receives the stop string.  A token
    that may belong to either side of the cut is not counted.  The text is decoded once; the amount of additional
    decoding grows with the number of tokens from the cut on.

    Args:
        output: the tokens, possibly with some after the stop.
        stop: the stop strings.
        decode: returns the text of token ids as clients receive it.
        lead: the prompt's last tokens, if the engine decodes outputs with them in front.
        least: number of leading tokens in which no stop string ends.
        keep: whether the client receives the stop string too.
        newest: number of last tokens to decode, if the engine's search for stop strings cannot lag by more; None
            decodes all.  The result is the same as long as no stop string begins before them.

    Returns:
        None if the text contains no stop string.
    """
    skipped = 0 if newest is None else max(0, len(output) - newest)
    if skipped:
        preceding = [*lead, *output[max(0, skipped - LEAD) : skipped]][-LEAD:]
        found = tokens_before_stop(
            output[skipped:], stop, decode, lead=preceding, least=max(0, least - skipped), keep=keep
        )
        if found != 0:  # otherwise the cut may lie earlier
            return None if found is None else skipped + found
    ids = list(output)
    before = list(lead)
    prompt = decode(before) if before else ""
    text = decode(before + ids)
    start = _common(prompt, text)
    text = text[start:]
    first = len(decode(before + ids[:least]).rstrip(UNFINISHED)) - start if least else 0
    starts = [(text.find(string, max(0, first + 1 - len(string))), len(string)) for string in stop]
    completed = [(start + size, start) for start, size in starts if start >= 0]
    if not completed:
        return None
    end, start = min(completed, key=itemgetter(0))
    cut = end if keep else start
    count = _tokens_up_to(ids, text[cut:], decode)
    while count and not decode(ids[count - 1 : count]):  # hidden, such as special tokens
        count -= 1
    return count


def _tokens_up_to(ids: list[int], end: str, decode: Callable[[list[int]], str]) -> int:
    """Return the number of tokens that lie wholly before a text's end `end`, so that the tokens after them hold it."""

    maybe_partial = end.startswith(UNFINISHED)  # some of its bytes may lie in the token before

    def are_before(count: int) -> bool:
        after = decode(ids[count:])
        return after.endswith(end) and not (maybe_partial and len(after) == len(end))

    low = high = len(ids)  # `low` lies in front, and `high` does not, once they differ
    step = 1
    while low and not are_before(low):
        low, high, step = max(0, len(ids) - step), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if are_before(middle) else (low, middle)
    return low


def _common(left: str, right: str) -> int:
    """Return the length of the longest common prefix."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
