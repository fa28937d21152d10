"""Removing documents and whole corpora, atomically."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specplug.corpus.files import yield_gil
from specplug.corpus.manifest import Manifest, SegmentEntry
from specplug.corpus.tenant import Tenant, unknown_document
from specplug.corpus.writing import changing
from specplug.errors import CorpusError

_NAMES_PER_YIELD = 64

_log = logging.getLogger("specplug")


class Removed(NamedTuple):
    """The result of a removal: the amounts removed."""

    documents: int
    tokens: int

    @classmethod
    def between(cls, before: Manifest, after: Manifest) -> Removed:
        """Return what a later manifest lacks."""
        return cls(before.documents - after.documents, before.tokens - after.tokens)


def remove_corpus(tenant: Tenant, corpus: str) -> Removed:
    """Remove a whole corpus, from damaged segments too; these serve nothing from then on."""
    with changing(tenant, corpus) as change:
        gone = dict[SegmentEntry, npt.NDArray[np.bool_]]()
        replaced = dict[SegmentEntry, list[SegmentEntry]]()
        for entry in change.before.segments:
            if not entry.has(corpus):
                continue
            left = tuple([part for part in entry.parts if part.corpus != corpus])
            if not left:
                replaced[entry] = []
                continue
            try:
                segment = tenant.checked(entry)
            except CorpusError as error:
                if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, FileNotFoundError):
                    raise  # it may be whole
                text = "corpus store: %s: it serves nothing from now on, and goes with the last of its corpora"
                _log.warning(text, error)
                replaced[entry] = [replace(entry, parts=left)]
            else:
                gone[entry] = segment.corpus_of == segment.corpora.index(corpus)
        entries = [it for entry in change.without(gone) for it in replaced.get(entry, [entry])]
        return Removed.between(change.before, change.commit(entries))


def remove_documents(tenant: Tenant, corpus: str, names: Sequence[str]) -> Removed:
    """Remove all documents of a corpus that have one of the names.  If any name is missing, nothing is removed."""
    with changing(tenant, corpus) as change:
        searched = {entry: tenant.open(entry) for entry in change.before.segments if entry.has(corpus)}
        gone = {entry: np.zeros(entry.documents, bool) for entry in searched}
        for number, name in enumerate(names):
            if not number % _NAMES_PER_YIELD:
                yield_gil()
            found = {entry: segment.find(name, corpus) for entry, segment in searched.items()}
            if not any(found.values()):
                raise unknown_document(name, [*searched.values()], corpus)
            for entry, indices in found.items():
                gone[entry][indices] = True
        return Removed.between(change.before, change.commit(change.without(gone)))
