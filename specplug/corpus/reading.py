"""Lookup of documents by name, and checks of a tenant's segments."""

from __future__ import annotations

from specplug.corpus.documents import Tokens
from specplug.corpus.manifest import Entry, Manifest
from specplug.corpus.removing import unknown_corpus, unknown_document
from specplug.corpus.status import Problem
from specplug.corpus.tenant import Tenant
from specplug.corpus.verifying import broken_invariants, check_sections
from specplug.errors import CorpusError, SpecplugError


def newest_document(tenant: Tenant, manifest: Manifest, name: str, corpus: str | None) -> Tokens:
    """Return the body of the newest document with a name; see `Store.document`."""
    if corpus is not None and corpus not in manifest.corpora():
        raise unknown_corpus(corpus, manifest)
    looked_at = []
    for entry in reversed(manifest.entries):
        if corpus is None or any(part.corpus == corpus for part in entry.live):
            looked_at.append(segment := tenant.segment(entry))
            dead = entry.dead(segment.corpora, segment.corpus_of)
            for index in reversed(segment.find(name, corpus)):
                if dead is None or not dead[index]:
                    return segment.document(index)
    raise unknown_document(name, looked_at, corpus)


def problems_with(tenant: Tenant, entry: Entry) -> list[Problem]:
    """Read a whole segment and return its problems; none if it was deleted meanwhile."""
    try:
        segment = tenant.segment(entry)
        check_sections(segment)
        broken = broken_invariants(segment, tenant.tokenizer.vocab_size)
        if not broken and not _counted(entry, tenant):
            broken = ["not as many documents and tokens as its manifest says"]
    except SpecplugError as error:
        broken = [str(error)]
    if broken and not _is_named(tenant, entry):
        return []
    return [Problem(str(tenant.folder / entry.file), what) for what in broken]


def _counted(entry: Entry, tenant: Tenant) -> bool:
    segment = tenant.segment(entry)
    tokens, text = int(segment.lengths.sum()), segment.text.size
    dead = entry.dead(segment.corpora, segment.corpus_of)
    if dead is None:
        dead = segment.corpus_of.astype("uint8") * 0
    counted = entry.without(dead, segment.corpora, segment.corpus_of, segment.lengths)
    return (set(counted.live), tokens, text) == (set(entry.live), entry.tokens, entry.text)


def _is_named(tenant: Tenant, entry: Entry) -> bool:
    try:
        return entry.file in tenant.manifest().files()
    except CorpusError:
        return True
