"""Existing documents of a corpus, found by name and compared by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specplug.corpus.documents import Tokens
from specplug.corpus.layout import NO_TEXT
from specplug.corpus.manifest import Entry, Manifest
from specplug.corpus.names import name_hash
from specplug.corpus.segment import Segment
from specplug.corpus.tenant import Tenant
from specplug.errors import CorpusError

Flags = npt.NDArray[np.bool_]

_BARRIER = np.full(1, NO_TEXT, np.int32)


class Present:
    """The live documents of a corpus.  Each can be taken once, so two identical documents match two of the new ones.

    Raises:
        CorpusError: as `Tenant.segment`.
    """

    def __init__(self, tenant: Tenant, manifest: Manifest, corpus: str) -> None:
        self._corpus = corpus
        entries = [entry for entry in manifest.entries if any(part.corpus == corpus for part in entry.live)]
        self._segments: dict[str, Segment] = {entry.file: tenant.segment(entry) for entry in entries}
        self._live_at_first = {entry.file: self._live_documents(entry) for entry in entries}
        self._left = {file: lives.copy() for file, lives in self._live_at_first.items()}

    @property
    def tokens(self) -> int:
        """Tokens of the bodies of all documents that were live when this object was built."""
        return sum(int(self._segments[file].lengths[lives].sum()) for file, lives in self._live_at_first.items())

    def take(self, name: str, texts: Sequence[Tokens]) -> bool:
        """Take a document with this name and these texts if there is one left; return whether there was.

        Args:
            name: its name.
            texts: its body and its re-tokenized prefixes.
        """
        wanted = np.concatenate([part for text in texts for part in (text, _BARRIER)])
        for file, segment in self._segments.items():
            for index in segment.find(name, self._corpus):
                if self._left[file][index]:
                    found = segment.text[segment.starts[index] : segment.starts[index + 1]]
                    if np.array_equal(found, wanted):
                        self._left[file][index] = False
                        return True
        return False

    def has(self, name: str) -> bool:
        """Return whether a document of this name was live when this object was built."""
        return any(
            self._live_at_first[file][index]
            for file, segment in self._segments.items()
            for index in segment.find(name, self._corpus)
        )

    def left(self) -> Counter[int]:
        """Return the hashes of the names of the documents that were not taken."""
        return Counter(
            name_hash(self._segments[file].name_bytes(int(index)))
            for file, left in self._left.items()
            for index in np.flatnonzero(left)
        )

    def without_left(self, manifest: Manifest) -> list[Entry]:
        """Return a newer manifest's entries without the documents that were not taken.

        Raises:
            CorpusError: another process has changed the corpus since this object was built.
        """
        entries = []
        named = {entry.file for entry in manifest.entries if any(part.corpus == self._corpus for part in entry.live)}
        if named != set(self._segments):
            raise self._changed()
        for entry in manifest.entries:
            if entry.file in named:
                segment, left = self._segments[entry.file], self._left[entry.file]
                if not np.array_equal(self._live_documents(entry), self._live_at_first[entry.file]):
                    raise self._changed()
                dead = entry.dead(segment.corpora, segment.corpus_of)
                mask = left if dead is None else left | (dead != 0)
                entry = (
                    entry.without(mask.astype(np.uint8), segment.corpora, segment.corpus_of, segment.lengths)
                    if left.any()
                    else entry
                )
            entries.append(entry)
        return [entry for entry in entries if entry.live]

    def _live_documents(self, entry: Entry) -> Flags:
        """Return [d] bool, true for live documents of the corpus."""
        segment = self._segments[entry.file]
        own: Flags = segment.corpus_of == segment.corpora.index(self._corpus)
        dead = entry.dead(segment.corpora, segment.corpus_of)
        return own if dead is None else own & (dead == 0)

    def _changed(self) -> Exception:
        return CorpusError.build(
            "another process changed the corpus meanwhile", who=f"corpus {self._corpus!r}", remedy="Do it again"
        )
