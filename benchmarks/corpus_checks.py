"""Correctness checks of the code that `benchmarks.corpus_cost` times, against plain Python on samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.corpus_arms import KEY, Contexts, Ours
from specplug.corpus.counting import continuations
from specplug.corpus.view import LiveSegment
from specplug.match.cpu.corpus_index import IndexSegment
from specplug.match.cpu.searching import token_after
from specplug.match.cpu.sorting import sorted_places
from specplug.match.cpu.texts import NO_TEXT
from tests.match.reference.corpus_index import ReferenceCorpusIndex
from tests.match.reference.recency import key_of

PART = 4000
"""Tokens of the text for the plain search, which sorts and searches in Python."""


def unlike_the_reference(live: LiveSegment, requested: Contexts, count: int) -> list[str]:
    """Return the differences between kernel and plain search, in a part of a segment's text."""
    text = live.segment.text[:PART].copy()
    text[-1] = NO_TEXT
    starts, only = np.array([1, text.size], np.int64), np.zeros(1, np.int32)
    part = IndexSegment(text, sorted_places(text, KEY), starts, only, ("all",))
    plain, ours = ReferenceCorpusIndex({"": [part]}, KEY), Ours([part])
    inside = Contexts(text, np.random.default_rng(0).integers(1, PART, count))
    wrong = []
    for each in (inside, requested):
        for end in each.at[:count].tolist():
            last = each.text[max(0, end - KEY) : end].tolist()
            expected = [(it.length, it.at) for it in plain.nearest("", (), key_of(last, len(last), KEY), KEY)]
            found = [(length, place - ours.first) for length, place in ours.best(last)]
            if found != expected:
                wrong.append(f"place {end}: found {found[:3]}..., expected {expected[:3]}...")
    return wrong


def unlike_the_counts(live: Sequence[LiveSegment], ours: Ours, requested: Contexts, count: int) -> list[str]:
    """Return the contexts for which the longest match or its continuations differ from a plain count of the store."""
    wrong = []
    for at in requested.at[:count]:
        context = requested.text[at - KEY : at].tolist()
        counted, found = continuations(live, context), ours.best(context)
        longest = found[0][0] if found else 0
        follow = {int(token_after(place)) for n, place in found if n == longest}
        if longest != counted.length or (found and not follow & set(counted.counts)):
            wrong.append(f"place {at}: {longest} tokens, then {follow}; counted {counted}")
    return wrong
