"""Construction of a segment's arrays from documents."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Document, Tokens
from specplug.corpus.layout import COMPARED, NO_TEXT
from specplug.corpus.manifest import Part
from specplug.corpus.names import MAX_DOCUMENT_NAME, check_name, name_hash, shortened
from specplug.corpus.writing import pieces, yield_gil
from specplug.errors import CorpusError

Sections = dict[str, npt.NDArray[np.generic]]

_BARRIER = np.full(1, NO_TEXT, np.int32).tobytes()
_WORK_PER_YIELD = 1 << 16  # tokens, or work that takes as long


def checked(document: Document, vocab_size: int) -> list[Tokens]:
    """Return a document's texts, its body first, as [n] int32 each; none if its body is empty.

    Raises:
        CorpusError: its name is invalid, or a text is not a one-dimensional array of token ids below `vocab_size`.
    """
    check_name("document", document.name, most=MAX_DOCUMENT_NAME)
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
    least, most = int(text.min()), int(text.max())
    return f"id {least if least < 0 else most}" if least < 0 or most >= vocab_size else None


class Builder:
    """Collects documents for one segment, and builds its arrays.

    It keeps no Python object per document, so that millions of documents are cheap.

    Attributes:
        corpora: names of the corpora so far; `corpus_of` indexes them.
        size: n, the length of the text so far.
    """

    def __init__(self) -> None:
        self.corpora: list[str] = []
        self.size = 1
        self._counts: list[list[int]] = []  # documents and tokens per corpus
        self._index: dict[str, int] = {}
        self._text, self._names = bytearray(_BARRIER), bytearray()
        self._starts, self._lengths, self._name_ends = array("q", [1]), array("q"), array("q")
        self._hashes, self._corpus_of = array("Q"), array("i")
        self._until_yield = _WORK_PER_YIELD

    def __len__(self) -> int:
        """Return the number of documents so far."""
        return len(self._lengths)

    def append(self, corpus: str, name: bytes, texts: Sequence[Tokens]) -> None:
        """Add a document.

        Args:
            corpus: its corpus.
            name: its name, UTF-8.
            texts: [n] int32 each, its body first; none is empty.
        """
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
        self._corpus_of.append(self._of(corpus, len(texts[0])))
        self._yield_gil(_WORK_PER_YIELD // 64)

    def parts(self) -> tuple[Part, ...]:
        """Return the number of documents and tokens of each corpus."""
        return tuple(Part(name, *counts) for name, counts in zip(self.corpora, self._counts, strict=True))

    def sections(self) -> Sections:
        """Return all arrays of the segment as described in `layout.SECTIONS`.  Slow, but releases the GIL."""
        from specplug.match.cpu.sorting import sorted_places  # imports numba, which only building needs

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

    def _of(self, corpus: str, tokens: int) -> int:
        index = self._index.get(corpus)
        if index is None:
            index = self._index[corpus] = len(self.corpora)
            self.corpora.append(corpus)
            self._counts.append([0, 0])
        self._counts[index][0] += 1
        self._counts[index][1] += tokens
        return index

    def _yield_gil(self, cost: int) -> None:
        self._until_yield -= cost
        if self._until_yield < 0:
            self._until_yield = _WORK_PER_YIELD
            yield_gil()
