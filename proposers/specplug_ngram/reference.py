"""Prompt lookup in plain Python: no index, no memory, nothing learnt.  It shows what the rest is for.

After A. Saxena ("Prompt Lookup Decoding", 2023), with the longest match instead of a fixed length, and with
reference texts as further places to look.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.host import HostDraft, HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.types.request import Request
from specplug_ngram.options import ReferenceSettings

OWN_TEXT, REFERENCE = 0, 1


class Match(NamedTuple):
    """Where the newest tokens occurred before: the last `n` of them lie in a text right before index `end`."""

    n: int
    end: int


NO_MATCH = Match(0, 0)


def find_match(suffix: Tokens, text: Tokens, max_n: int) -> Match:
    """Return the longest match of the end of `suffix` in `text`, of several the one that lies last.

    At least one token of `text` follows the match, so a text that is its own suffix does not match at its end.
    Matches count up to `max_n` tokens.
    """
    ends = np.flatnonzero(text[:-1] == suffix[-1]) + 1
    if not ends.size:
        return NO_MATCH
    n = 1
    while n < min(max_n, suffix.size):
        longer = ends[1:] if ends[0] == n else ends  # nothing stands before a match at the very beginning
        longer = longer[text[longer - n - 1] == suffix[-n - 1]]
        if not longer.size:
            break
        ends, n = longer, n + 1
    return Match(n, int(ends[-1]))


def confidence(n: int, count: int) -> npt.NDArray[np.float32]:
    """Return [count] float32: how likely each of `count` tokens is accepted behind a match of `n` tokens.

    Laplace's rule of succession: text and copy have agreed n times out of n, so they agree next with probability
    (n + 1) / (n + 2).  Each accepted draft token makes the agreement one longer.
    """
    agreed = np.arange(n, n + count, dtype=np.float32)
    levels: npt.NDArray[np.float32] = (agreed + 1) / (agreed + 2)
    return levels


class NgramReference(HostProposer):
    """Drafts what followed the longest earlier occurrence of the newest tokens.

    The request's own text comes first, then its references in order; a later text wins by a longer match only.  The
    draft stops where the text that it is copied from ends: a match that overlaps the newest tokens is not continued
    periodically.  No state is kept.
    """

    sources = ("own text", "reference")

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: ReferenceSettings = context.options or ReferenceSettings()

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> HostDraft:
        min_n, max_n = self._options.min_n, self._options.max_n
        text, best, source = tokens, find_match(tokens, tokens, max_n), OWN_TEXT
        for reference in () if request is None else request.references:
            match = find_match(tokens, reference.token_ids, max_n)
            if match.n > best.n:
                text, best, source = reference.token_ids, match, REFERENCE
        if best.n < min_n:
            return HostDraft(())
        follows = text[best.end : best.end + limit]
        return HostDraft(follows, confidence(best.n, follows.size), source)
