"""The corpus index: static texts that many requests draft from, by tenant and corpus; `searching` searches it.

A corpus index is immutable.  Adding or removing a corpus builds a new one, which replaces the old one between two
steps; texts and places are never copied, so they may be mapped from files.  Kernels use addresses: a place is the
address of the token after it, in units of a token, so a candidate's place suffices to read its next tokens.  Every text
ends with NO_TEXT, which ends every read.

Numbers from files are clamped before they are used: a damaged file costs only drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specplug.errors import ContractError
from specplug.match.cpu.records import Record, record
from specplug.match.cpu.texts import MOST_CANDIDATES, Tokens

MOST_NAMED = 16
"""The most corpora that a request may name."""

MAX_CURSORS = 16
"""The most searches that are interleaved."""

TOKEN = 4
"""Bytes per token."""


@dataclass(frozen=True, slots=True, eq=False)
class IndexSegment:
    """Static texts of one tenant, in the form that kernels search.

    Attributes:
        text: [n] int32, NO_TEXT first, last, and after each text.
        places: [m] int32, as `sorting.sorted_places` returns them.
        starts: [d + 1] int64, the start of each document's texts, and the end.
        corpus_of: [d] int32, index into `corpora` of each document's corpus.
        corpora: names of the corpora.
        dead: [d] uint8, 1 for documents that must not be drafted from; None if there are none.
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


class CorpusIndex:
    """The segments of all tenants.

    Args:
        tenants: the segments of each tenant.
        numbers: the number, from 1, of each tenant and of each (tenant, corpus); new ones are added.
    """

    def __init__(self, tenants: Mapping[str, Sequence[IndexSegment]], numbers: IdTable) -> None:
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
        self._shared = {
            "texts": _ints([_address(it.text) // TOKEN for it in kept]),
            "lengths": _ints([len(it.text) for it in kept]),
            "places": _ints([_address(it.places) for it in kept]),
            "counts": _ints([len(it.places) for it in kept]),
            "starts": _ints([_address(it.starts) for it in kept]),
            "documents": _ints([len(it.corpus_of) for it in kept]),
            "corpus_of": _ints([_address(it.corpus_of) for it in kept]),
            "dead": _ints([0 if it.dead is None else _address(it.dead) for it in kept]),
            "first_number": _ints(first_number),
            "numbers": np.asarray(corpora, np.int32),
            "first": _ints(first),
        }

    def view(self) -> Record:
        """Return a record of these segments with its own workspace, for kernels on another thread."""
        return record(
            **self._shared,
            found=np.zeros(MOST_CANDIDATES, np.int64),
            **{name: np.zeros(MOST_CANDIDATES, np.int32) for name in ("matches", "named", "segments")},
            cursors=np.zeros((MAX_CURSORS, 6), np.int64),
        )


class IdTable:
    """The numbers of tenants and corpora in kernels; numbers are never reused."""

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
        """Return the number of a tenant, 0 if it has none, and the numbers of those of its corpora that have one.

        Clients choose these names, so a query never assigns a number.
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
