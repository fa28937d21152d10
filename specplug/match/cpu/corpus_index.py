"""Shelves: static texts that many requests draft from, told apart by tenant and by corpus; `searching` searches them.

A shelf does not change.  What is added or removed makes a new one, which takes the old one's place between two steps;
texts and places themselves are never copied, so they may be mapped from files.  Kernels know them by address: a place
is the address of the token behind it, in units of a token, so that a candidate needs nothing but its place to be
followed from one token to the next.  Every text ends with what is no text, which ends whatever is read from it.
Numbers that come from files are brought into range before they lead anywhere: a damaged file costs drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import ContractError
from specplug.match.cpu.records import Record, RecordType, define
from specplug.match.cpu.texts import MOST_CANDIDATES, Tokens

MOST_NAMED = 16
"""Corpora that a request may name."""

MAX_CURSORS = 16
"""Searches that go on side by side."""

TOKEN = 4
"""Bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexSegment:
    """Static texts of one tenant, as they are searched.

    Attributes:
        text: [n] int32, NO_TEXT first, last, and behind each text.
        places: [m] int32, as `sorting.sorted_places` returns them.
        starts: [d + 1] int64, where the texts of each document begin, and the end.
        corpus_of: [d] int32, which of `corpora` a document belongs to.
        corpora: their names.
        dead: [d] uint8, 1 for documents that are not to be drafted from; None where all are.
    """

    text: Tokens
    places: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    corpus_of: npt.NDArray[np.int32]
    corpora: Sequence[str]
    dead: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        arrays = (self.text, self.places, self.starts, self.corpus_of)
        fits = all(it.flags.c_contiguous and it.flags.aligned for it in arrays)
        fits = fits and len(self.starts) == len(self.corpus_of) + 1 > 1
        if not fits or (self.dead is not None and len(self.dead) != len(self.corpus_of)):
            raise ContractError.build(
                "malformed segment", who="Segment", expected="contiguous arrays of fitting lengths"
            )
        if not len(self.text) or self.text[0] >= 0 or self.text[-1] >= 0:
            raise ContractError.build("malformed segment", who="Segment", expected="NO_TEXT at both ends of its text")


class CorpusIndexType(RecordType):
    """See `CorpusIndex`."""


class _CorpusIndex(Record):
    pass


define(
    _CorpusIndex,
    CorpusIndexType,
    ["texts", "lengths", "places", "counts", "starts", "documents", "corpus_of", "dead", "first_number", "numbers",
     "first", "found", "matches", "named", "segments", "cursors"],
)  # fmt: skip


class CorpusIndex:
    """The segments of all tenants.

    Args:
        tenants: their segments.
        numbers: the number, from 1, of each tenant and of each (tenant, corpus); those that are new are added.

    Attributes:
        record: all of it, as kernels take it.
    """

    def __init__(self, tenants: Mapping[str, Sequence[IndexSegment]], numbers: Numbers) -> None:
        by_number = {numbers.tenant(name): (name, segments) for name, segments in tenants.items()}
        self._kept: list[IndexSegment] = []
        first, first_number, corpora = [0, 0], list[int](), list[int]()
        for number in range(1, len(numbers.tenants) + 1):
            name, segments = by_number.get(number, ("", ()))
            for segment in segments:
                first_number.append(len(corpora))
                corpora += [numbers.corpus(name, corpus) for corpus in segment.corpora]
            self._kept += segments
            first.append(len(self._kept))
        kept = self._kept
        self.num_tokens = sum(len(segment.text) for segment in kept)
        self.record = _CorpusIndex(  # type: ignore[no-untyped-call]
            _ints([_address(it.text) // TOKEN for it in kept]),
            _ints([len(it.text) for it in kept]),
            _ints([_address(it.places) for it in kept]),
            _ints([len(it.places) for it in kept]),
            _ints([_address(it.starts) for it in kept]),
            _ints([len(it.corpus_of) for it in kept]),
            _ints([_address(it.corpus_of) for it in kept]),
            _ints([0 if it.dead is None else _address(it.dead) for it in kept]),
            _ints(first_number),
            np.asarray(corpora, np.int32),
            _ints(first),
            np.zeros(MOST_CANDIDATES, np.int64),
            *(np.zeros(MOST_CANDIDATES, np.int32) for _ in range(3)),
            np.zeros((MAX_CURSORS, 6), np.int64),
        )


class Numbers:
    """The numbers that kernels know tenants and corpora by; they are never given again."""

    def __init__(self) -> None:
        self.tenants: dict[str, int] = {}
        self._corpora: dict[tuple[str, str], int] = {}

    def tenant(self, name: str) -> int:
        """Return a tenant's number, from 1."""
        return self.tenants.setdefault(name, len(self.tenants) + 1)

    def corpus(self, tenant: str, name: str) -> int:
        """Return a corpus's number, from 1."""
        return self._corpora.setdefault((tenant, name), len(self._corpora) + 1)

    def known(self, tenant: str | None, corpora: Sequence[str]) -> tuple[int, list[int]]:
        """Return the numbers of a tenant, 0 for one that has none, and of those of its corpora that have one.

        Clients choose these names: none gets a number by being asked for.
        """
        if tenant is None or tenant not in self.tenants:
            return 0, []
        return self.tenants[tenant], [
            self._corpora[tenant, name] for name in corpora if (tenant, name) in self._corpora
        ]


def _ints(values: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(values, np.int64)


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)
