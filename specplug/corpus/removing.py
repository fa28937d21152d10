"""Removal: removed documents are marked in the manifest; segments without live documents are deleted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specplug.corpus.manifest import Entry, Manifest
from specplug.corpus.names import hint, shortened
from specplug.corpus.segment import Segment
from specplug.corpus.status import Removed
from specplug.corpus.tenant import Tenant
from specplug.corpus.writing import yield_gil
from specplug.errors import CorpusError, SpecplugError


def remove_corpus(tenant: Tenant, corpus: str) -> Removed:
    """Remove a whole corpus.  Opens no segment, so that a torn one can be removed.

    Raises:
        CorpusError: there is no corpus with this name; or as `Tenant.commit`.
    """
    _check_there(tenant.manifest(), corpus)
    with tenant.alone() as manifest:
        _check_there(manifest, corpus)
        return _commit(tenant, manifest, [_without_corpus(entry, corpus) for entry in manifest.entries])


def remove_documents(tenant: Tenant, corpus: str, names: Sequence[str]) -> Removed:
    """Remove all documents of a corpus that have one of the names.  If any name is missing, nothing is removed.

    Raises:
        CorpusError: there is no such corpus or document; or as `Tenant.segment` and `commit`.
    """
    _check_there(tenant.manifest(), corpus)
    with tenant.alone() as manifest:
        _check_there(manifest, corpus)
        missing, entries, looked_at = dict.fromkeys(names), [], []
        for entry in manifest.entries:
            if any(part.corpus == corpus for part in entry.live):
                looked_at.append(tenant.segment(entry))
                entries.append(_without_documents(entry, looked_at[-1], corpus, names, missing))
            else:
                entries.append(entry)
        if missing:
            raise unknown_document(next(iter(missing)), looked_at, corpus)
        return _commit(tenant, manifest, entries)


def unknown_corpus(corpus: str, manifest: Manifest) -> SpecplugError:
    """Return the error for a corpus that does not exist."""
    who = f"tenant {shortened(manifest.tenant)}" if manifest.tenant else None
    found = shortened(corpus)
    return CorpusError.build("no such corpus", who=who, found=found, remedy=hint(corpus, manifest.corpora()))


def unknown_document(name: str, segments: Sequence[Segment], corpus: str | None) -> SpecplugError:
    """Return the error for a document that is in none of the searched segments."""
    names = (
        segment.name(index)
        for segment in segments
        for index in range(len(segment))
        if corpus in (None, segment.corpora[segment.corpus_of[index]])
    )
    known = (other for other in names if other != name)  # the name may be that of a removed document
    who = None if corpus is None else f"corpus {shortened(corpus)}"
    return CorpusError.build("no such document", who=who, found=shortened(name), remedy=hint(name, known))


def _check_there(manifest: Manifest, corpus: str) -> None:
    if corpus not in manifest.corpora():
        raise unknown_corpus(corpus, manifest)


def _without_corpus(entry: Entry, corpus: str) -> Entry:
    if not any(part.corpus == corpus for part in entry.live):
        return entry
    live = tuple(part for part in entry.live if part.corpus != corpus)
    return entry._replace(live=live, dead_corpora=(*entry.dead_corpora, corpus))


def _without_documents(
    entry: Entry, segment: Segment, corpus: str, names: Sequence[str], missing: dict[str, None]
) -> Entry:
    """Return the entry without the named live documents; delete their names from `missing`."""
    dead = entry.dead(segment.corpora, segment.corpus_of)
    dead = np.zeros(len(segment), np.uint8) if dead is None else dead
    for at, name in enumerate(names):
        if not at % 64:
            yield_gil()
        which = [index for index in segment.find(name, corpus) if not dead[index]]
        if which:
            missing.pop(name, None)
            dead[which] = 1
    return entry.without(dead, segment.corpora, segment.corpus_of, segment.lengths)


def _commit(tenant: Tenant, before: Manifest, entries: Sequence[Entry]) -> Removed:
    tenant.commit(before, [entry for entry in entries if entry.live])
    held, lives = (
        [sum(counts) for counts in zip(*(part[1:] for entry in some for part in entry.live), strict=True)] or [0, 0]
        for some in (before.entries, entries)
    )
    return Removed(held[0] - lives[0], held[1] - lives[1])
