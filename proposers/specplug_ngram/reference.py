"""Prompt lookup in plain Python, without index, memory or learning: the baseline of the other proposers.

After A. Saxena ("Prompt Lookup Decoding", 2023), with the longest match instead of a fixed length, and with
reference texts as further sources.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from specplug.host import HostDraft, HostProposer, Tokens
from specplug.interfaces import PluginContext
from specplug.types.request import Request


class ReferenceSettings(BaseModel):
    """The shortest and the longest match, in tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_n: int = Field(default=2, ge=1, description="shortest match that is drafted from")
    max_n: int = Field(default=8, ge=1, description="longest match that is looked for; longer ones count as this long")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_n > self.max_n:
            raise ValueError(f"min_n is {self.min_n}, more than max_n, {self.max_n}; expected min_n <= max_n")
        return self


OWN_TEXT = 0
REFERENCE = 1


class Match(NamedTuple):
    """An earlier occurrence of the newest tokens: the last `n` of them precede index `end` of a text."""

    n: int
    end: int


NO_MATCH = Match(0, 0)


def find_match(suffix: Tokens, text: Tokens, max_n: int) -> Match:
    """Return the longest match of the end of `suffix` in `text`; ties go to the last one.

    At least one token of `text` follows the match, so a text that is its own suffix does not match at its end.
    Matches count up to `max_n` tokens.
    """
    ends = np.flatnonzero(text[:-1] == suffix[-1]) + 1
    if not ends.size:
        return NO_MATCH
    n = 1
    while n < min(max_n, suffix.size):
        longer = ends[1:] if ends[0] == n else ends  # no token precedes a match at the beginning
        longer = longer[text[longer - n - 1] == suffix[-n - 1]]
        if not longer.size:
            break
        ends = longer
        n = n + 1
    return Match(n, int(ends[-1]))


def confidence(n: int, count: int) -> npt.NDArray[np.float32]:
    """Return [count] float32: the probability that each of `count` tokens is accepted after a match of `n` tokens.

    Laplace's rule of succession: text and copy have agreed n times out of n, so they agree next with probability
    (n + 1) / (n + 2).  Each accepted draft token lengthens the agreement by one.
    """
    agreed = np.arange(n, n + count, dtype=np.float32)
    levels: npt.NDArray[np.float32] = (agreed + 1) / (agreed + 2)
    return levels


class NgramReference(HostProposer):
    """Drafts the tokens that followed the longest earlier occurrence of the newest tokens.

    The request's own text comes first, then its references in order; a later text wins only by a longer match.  The
    draft ends with the text that it is copied from: a match that overlaps the newest tokens is not continued
    periodically.  The proposer keeps no state.
    """

    sources = ("own text", "reference")

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._options: ReferenceSettings = context.options or ReferenceSettings()

    def draft(self, tokens: Tokens, limit: int, request: Request | None) -> HostDraft:
        min_n = self._options.min_n
        max_n = self._options.max_n
        text = tokens
        best = find_match(tokens, tokens, max_n)
        source = OWN_TEXT
        for reference in () if request is None else request.references:
            match = find_match(tokens, reference.token_ids, max_n)
            if match.n > best.n:
                text = reference.token_ids
                best = match
                source = REFERENCE
        if best.n < min_n:
            return HostDraft(())
        follows = text[best.end : best.end + limit]
        return HostDraft(follows, confidence(best.n, follows.size), source)
