"""Construction of a segment's arrays from documents."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Document, Tokens
from specplug.corpus.files import pieces, yield_gil
from specplug.corpus.names import MAX_DOCUMENT_NAME, check_name, name_hash, shortened
from specplug.corpus.segment import COMPARED, NO_TEXT, Segment
from specplug.errors import CorpusError

_BARRIER = np.full(1, NO_TEXT, np.int32).tobytes()
_WORK_PER_YIELD = 1 << 16  # tokens, or work that takes as long


def checked(document: Document, vocab_size: int) -> list[Tokens]:
    """Return a document's texts, its body first, as [n] int32 each; none if its body is empty.

    A wrong name, or a text that is no line of token ids below `vocab_size`, raises CorpusError.
    """
    check_name("document", document.name, max_length=MAX_DOCUMENT_NAME)
    texts = []
    for ids in (document.token_ids, *document.prefixes):
        text = np.asarray(ids)
        wrong = _wrong(text, vocab_size) if text.size else None
        if wrong is not None:
            raise CorpusError.build(
                "not the tokens of a document",
                who=f"document {shortened(document.name)}",
                found=wrong,
                expected=f"a line of ids in [0, {vocab_size})",
                remedy="A store takes the ids of its own tokenizer only",
            )
        texts.append(np.ascontiguousarray(text, np.int32))
    return [text for text in texts if text.size] if texts[0].size else []


def _wrong(text: npt.NDArray[np.generic], vocab_size: int) -> str | None:
    if text.ndim != 1 or text.dtype.kind not in "iu":
        return f"shape {text.shape} of {text.dtype}"
    smallest = int(text.min())
    largest = int(text.max())
    return f"id {smallest if smallest < 0 else largest}" if smallest < 0 or largest >= vocab_size else None


def load_sorting() -> None:
    """Load the code that sorts texts, which takes seconds at most and would otherwise be part of the first build."""
    from specplug.corpus.sorting import sorted_places  # imports numba

    sorted_places(np.array([NO_TEXT, 0, 0, NO_TEXT], np.int32), COMPARED)


class NewDocument(NamedTuple):
    """A document to be written to a segment: its corpus, its name in UTF-8, and its texts as of `checked`."""

    corpus: str
    name: bytes
    texts: Sequence[Tokens]


def documents_of(segment: Segment) -> Iterator[NewDocument]:
    """Yield all documents of a segment in order."""
    for index in range(len(segment)):
        body = segment.document(index)
        after = segment.text[segment.starts[index] + len(body) + 1 : segment.starts[index + 1] - 1]
        texts = [body, after] if len(after) else [body]  # all prefixes at once: barriers are between them
        yield NewDocument(segment.corpora[segment.corpus_of[index]], segment.name_bytes(index), texts)


def remaining(segment: Segment, kept: npt.NDArray[np.bool_]) -> tuple[dict[str, npt.NDArray[np.generic]], list[str]]:
    """Return the arrays and the corpora of a segment of the documents `kept`, [d] bool, at least one.

    They equal those that `Builder` builds.  Nothing is sorted: without a document, places and names keep their order.
    """
    sizes = np.diff(segment.starts)
    names = np.diff(segment.name_ends, prepend=0)
    in_order = kept[segment.name_order]
    owners = segment.corpus_of[kept]
    used, first = np.unique(owners, return_index=True)
    used = used[np.argsort(first)]
    numbers = np.zeros(len(segment.corpora), np.int32)
    numbers[used] = np.arange(used.size)
    return {
        "starts": np.cumsum(np.concatenate([[1], sizes[kept]])),
        "lengths": segment.lengths[kept],
        "name_ends": np.cumsum(names[kept]),
        "name_hashes": segment.name_hashes[in_order],
        "text": np.concatenate([segment.text[:1], segment.text[1:][np.repeat(kept, sizes)]]),
        "places": _moved_places(segment, ~kept),
        "corpus_of": numbers[owners],
        "name_order": (np.cumsum(kept) - 1)[segment.name_order[in_order]],
        "names": segment.names[np.repeat(kept, names)],
    }, [segment.corpora[number] for number in used]


def _moved_places(segment: Segment, gone: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Return a segment's places, in their order, in its text without some documents."""
    begins = segment.starts[:-1][gone]
    ends = np.concatenate([[0], segment.starts[1:][gone]])
    moved = np.concatenate([[0], np.cumsum(np.diff(segment.starts)[gone])]).astype(np.int32)
    found = [np.zeros(0, np.int32)]
    for at in range(0, segment.places.size, _WORK_PER_YIELD):
        places = segment.places[at : at + _WORK_PER_YIELD]
        number = np.searchsorted(begins, places)  # of documents that begin before it and are gone
        is_left = places >= ends[number]
        found.append(places[is_left] - moved[number[is_left]])
    return np.concatenate(found)


class Builder:
    """Collects documents for one segment, and builds its arrays.

    It keeps no Python object per document, so that millions of documents are cheap.
    """

    def __init__(self) -> None:
        self._indices: dict[str, int] = {}
        self.size = 1  # length of the text so far
        self._text = bytearray(_BARRIER)
        self._names = bytearray()
        self._starts = array("q", [1])
        self._lengths = array("q")
        self._name_ends = array("q")
        self._hashes = array("Q")
        self._corpus_of = array("i")
        self._until_yield = _WORK_PER_YIELD

    def __len__(self) -> int:
        """Return the number of documents so far."""
        return len(self._lengths)

    @property
    def corpora(self) -> list[str]:
        """Names of the corpora so far; `corpus_of` indexes them."""
        return list(self._indices)

    def append(self, corpus: str, name: bytes, texts: Sequence[Tokens]) -> None:
        """Add a document; `texts` are [n] int32 each, its body first, none empty."""
        for text in texts:
            for piece in pieces(text):
                self._yield_gil(len(piece) // 4)
                self._text += piece
            self._text += _BARRIER
            self.size += len(text) + 1
        self._names += name
        self._starts.append(self.size)
        self._lengths.append(len(texts[0]))
        self._name_ends.append(len(self._names))
        self._hashes.append(name_hash(name))
        self._corpus_of.append(self._indices.setdefault(corpus, len(self._indices)))
        self._yield_gil(_WORK_PER_YIELD // 64)

    def sections(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all arrays of the segment as described in `segment.SECTIONS`.  Slow, but releases the GIL."""
        from specplug.corpus.sorting import sorted_places  # imports numba, which only building needs

        text = np.frombuffer(self._text, np.int32)
        hashes = np.array(self._hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        return {
            "starts": np.array(self._starts, np.int64),
            "lengths": np.array(self._lengths, np.int64),
            "name_ends": np.array(self._name_ends, np.int64),
            "name_hashes": hashes[order],
            "text": text,
            "places": np.asarray(sorted_places(text, COMPARED)),
            "corpus_of": np.array(self._corpus_of, np.int32),
            "name_order": order.astype(np.int32),
            "names": np.frombuffer(self._names, np.uint8),
        }

    def _yield_gil(self, cost: int) -> None:
        self._until_yield -= cost
        if self._until_yield < 0:
            self._until_yield = _WORK_PER_YIELD
            yield_gil()
