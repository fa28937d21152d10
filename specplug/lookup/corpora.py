"""Corpora of the lookup: static texts that many requests draft from, by tenant.

All loaded texts are one value, `Corpora`, whose tensors are fields of `layout.State`; `use` replaces them as a whole
between two steps.  On a CPU its memory spans the arrays of the caller, which may be mapped from files, so that no token
is copied; on other devices it is a copy.  Numbers from files are clamped before they are used: a damaged file costs
drafts, and what is drafted may then differ by form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specplug.errors import ContractError
from specplug.lookup import layout as at
from specplug.lookup.layout import State

TEXT, LENGTH, PLACES, COUNT, DOCUMENTS, NUMBER = range(at.SEGMENT_FACTS)
"""Columns of `Corpora.segments`: begin and length of the text and of the places in `corpus`, and of its rows in
`documents`."""

_TOKEN = 4

MAX_ON_DEVICE = (1 << 31) - 1
"""Entries of `Corpora.corpus` on a GPU, whose kernels address them by 32 bits."""


class Segment(NamedTuple):
    """Texts of one tenant, in the arrays of a segment file.

    Attributes:
        text: [n] int32, tokens; a negative one is first, last, and between two texts.
        places: [m] int32, all p for which text[p - 1] and text[p] are tokens, sorted by the text before them read
            backwards, at most `layout.LONGEST` tokens or up to a negative one, which is the smallest.
        starts: [d + 1] int64, the start of each document's texts, and the end.
        corpus_of: [d] int32, index into `corpora` of each document's corpus.
        corpora: names of the corpora.
    """

    text: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    corpus_of: npt.NDArray[np.int32]
    corpora: Sequence[str]

    def check(self) -> None:
        """Raise ContractError if the arrays do not fit together."""
        arrays = (self.text, self.places, self.starts, self.corpus_of)
        fits = all(it.flags.c_contiguous and it.flags.aligned for it in arrays)
        fits = fits and len(self.starts) == len(self.corpus_of) + 1 > 1
        if not fits:
            raise ContractError.build(
                "malformed segment", who="Segment", expected="contiguous arrays of fitting lengths"
            )
        if not len(self.text) or self.text[0] >= 0 or self.text[-1] >= 0:
            raise ContractError.build(
                "malformed segment", who="Segment", expected="negative tokens at both ends of its text"
            )


class Corpora(NamedTuple):
    """The texts of all tenants: G segments of D documents, at most R segments a tenant; a part of `layout.State`.

    Attributes:
        corpus: [N] int32, the texts and places of all segments; other entries must not be read.
        segments: [G, SEGMENT_FACTS] int64, by column; see `TEXT`.  The segments of a tenant follow each other.
        tenants: [T + 1] int32, the first segment of each tenant by its number, and the end; 0 is no tenant.
        documents: [D, 2] int32, where each document begins in its segment's text, and the number of its
            corpus.
        corpus_matches: [S, R, CORPUS_CANDIDATES] int64, scratch of a step, by row: the best matches in each segment,
            (2 * tokens + whether the corpus is named) * 2^32 + place in the segment's text, best first; 0 for none.
    """

    corpus: Any
    segments: Any
    tenants: Any
    documents: Any
    corpus_matches: Any


class Numbers:
    """The numbers, from 1, of tenants and corpora; they are never reused."""

    def __init__(self) -> None:
        self.tenants: dict[str, int] = {}
        self._corpora: dict[tuple[str, str], int] = {}

    def tenant(self, name: str) -> int:
        """Return a tenant's number."""
        return self.tenants.setdefault(name, len(self.tenants) + 1)

    def corpus(self, tenant: str, name: str) -> int:
        """Return a corpus's number."""
        return self._corpora.setdefault((tenant, name), len(self._corpora) + 1)

    def known_numbers(self, tenant: str | None, corpora: Sequence[str]) -> list[int]:
        """Return a tenant's number, 0 if it has none, and those of at most `MAX_NAMED` of its corpora that have one.

        Clients choose these names, so a request never assigns a number.
        """
        if tenant is None or tenant not in self.tenants:
            return [0]
        found = [self._corpora[tenant, name] for name in corpora if (tenant, name) in self._corpora]
        return [self.tenants[tenant], *found[: at.MAX_NAMED]]


def load(
    tenants: Mapping[str, Sequence[Segment]],
    numbers: Numbers,
    slots: int,
    device: torch.device | str = "cpu",
    *,
    copied: bool = False,
) -> Corpora:
    """Return the corpora of all tenants, for S slots, on a device.

    Args:
        tenants: the segments of each tenant.
        numbers: new tenants and corpora are added to it.
        slots: the slots of the state that uses them.
        device: on a CPU the arrays are not copied, but kept, unless they are to be `copied`.

    Raises:
        ContractError: a segment's arrays do not fit together.
    """
    for name in tenants:
        numbers.tenant(name)
    kept = list[Segment]()
    first = [0]
    documents = [np.zeros((1, 2), np.int32)]  # so that no tensor is empty
    facts = list[list[int]]()
    begin = 1
    for name in numbers.tenants:
        first.append(len(kept))
        for segment in tenants.get(name, ()):
            segment.check()
            kept.append(segment)
            documents.append(_documents(segment, name, numbers))
            number = len(segment.corpus_of)
            facts.append([0, len(segment.text), 0, len(segment.places), begin, number])
            begin += number
    first.append(len(kept))
    memory, begins = _flat(kept) if copied or torch.device(device).type != "cpu" else _spanning(kept)
    table = np.array(facts, np.int64).reshape(-1, at.SEGMENT_FACTS)
    table[:, TEXT], table[:, PLACES] = begins.reshape(2, -1)
    several = int(np.diff(first).max(initial=1))
    return Corpora(
        corpus=memory.to(device),
        segments=torch.from_numpy(table).to(device),
        tenants=torch.tensor(first, dtype=torch.int32, device=device),
        documents=torch.from_numpy(np.concatenate(documents)).to(device),
        corpus_matches=torch.zeros(slots, several, at.CORPUS_CANDIDATES, dtype=torch.int64, device=device),
    )


def fit_segments(
    tenants: Mapping[str, Sequence[Segment]], max_bytes: float
) -> tuple[dict[str, list[Segment]], tuple[str, ...]]:
    """Return the segments that fit into a GPU's memory for corpora, in order, and a message for each that does not.

    Args:
        tenants: see `load`.
        max_bytes: of `Corpora.corpus`.
    """
    room = int(min(max_bytes / _TOKEN, MAX_ON_DEVICE)) - 1  # `_flat` adds an entry
    found = dict[str, list[Segment]]()
    left_out = list[str]()
    for name, segments in tenants.items():
        found[name] = []
        for segment in segments:
            entries = len(segment.text) + len(segment.places)
            if entries <= room:
                room -= entries
                found[name].append(segment)
                continue
            left_out.append(
                f"corpora {', '.join(segment.corpora)} of tenant {name!r}: {_TOKEN * entries:,} bytes do not fit "
                f"into the {_TOKEN * max(room, 0):,} left of corpora.device_gib, at most 8, on the GPU: "
                "nothing is drafted from them"
            )
    return found, tuple(left_out)


def use(state: State, corpora: Corpora) -> State:
    """Return a state with these corpora, between two steps; anchors in earlier corpora are dropped.

    The corpora must have been loaded for the state's slots and device.
    """
    state.slots[:, at.FOLLOWED_AT] = 0
    return state._replace(**corpora._asdict())


def assign(state: State, slots: Tensor, scopes: Sequence[Sequence[int]]) -> None:
    """Set what the new requests in slots, [N] int64, draft from; `storage.begin` comes before.

    Args:
        state, slots: see `storage.begin`.
        scopes: for each request what `Numbers.known_numbers` returned.
    """
    facts = torch.zeros(len(scopes), at.SCOPE, dtype=torch.int32)
    for row, (tenant, *named) in enumerate(scopes):
        facts[row, at.TENANT] = tenant
        facts[row, at.NAMED_CORPORA : at.NAMED_CORPORA + len(named)] = torch.tensor(named, dtype=torch.int32)
    state.scopes[slots] = facts.to(state.scopes.device)


def _documents(segment: Segment, tenant: str, numbers: Numbers) -> npt.NDArray[np.int32]:
    """Return a segment's rows of `Corpora.documents`."""
    own = np.array([numbers.corpus(tenant, name) for name in segment.corpora], np.int32)
    found = np.empty((len(segment.corpus_of), 2), np.int32)
    found[:, 0] = segment.starts[:-1].clip(0, len(segment.text))
    found[:, 1] = own[segment.corpus_of.clip(0, len(own) - 1)]
    return found


def _flat(segments: Sequence[Segment]) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """Return a copy of all texts, then all places, and where each of them begins in it."""
    arrays = [it.text for it in segments] + [it.places for it in segments]
    begins = np.cumsum([0, *map(len, arrays)], dtype=np.int64)[:-1]
    return torch.from_numpy(np.concatenate([*arrays, np.zeros(1, np.int32)])), begins


def _spanning(segments: Sequence[Segment]) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """Return memory that spans all texts and places, which it keeps, and where each of them begins in it."""
    arrays = [it.text for it in segments] + [it.places for it in segments]
    if not arrays:
        return _flat(segments)
    span = _Span(arrays)
    begins = [(array.ctypes.data - span.begin) // _TOKEN for array in arrays]
    return torch.from_numpy(np.asarray(span)), np.array(begins, np.int64)


class _Span:
    """The memory from the lowest address of some arrays to the highest, as one array, which keeps them."""

    def __init__(self, arrays: Sequence[npt.NDArray[np.int32]]) -> None:
        self.kept = arrays
        self.begin = min(it.ctypes.data for it in arrays)
        end = max(it.ctypes.data + it.nbytes for it in arrays)
        shape = ((end - self.begin) // _TOKEN,)
        # Not flagged as read-only, for which code would be compiled once more; nothing writes to it.
        self.__array_interface__ = {"data": (self.begin, False), "shape": shape, "typestr": "<i4", "version": 3}
