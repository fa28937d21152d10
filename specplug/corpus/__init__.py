"""The corpus store: documents to draft from, tokenised and sorted, in files that processes share.

    fingerprint  the identity of the store's tokenizer
    sources      what operators have, as texts; documents: a text's tokens, and its re-tokenized prefixes
    store        adding, removing, listing, merging and verifying, for processes that may write
    view         the store as a serving process reads it
    tenant       one tenant's folder, whose locks let one process at a time change it
    manifest     the list of a tenant's segments; replacing it commits a change
    segment      one immutable file, mapped into memory; layout describes its contents, building makes them
    files        opening, atomic writing and locking of files; sealed: JSON with a checksum

Nothing here imports an engine; numba is imported only to sort text.
"""

from specplug.corpus.documents import Document, tokenized
from specplug.corpus.segment import LiveSegment, Segment
from specplug.corpus.status import Added, CorpusInfo, Merged, Problem, Removed, Synced
from specplug.corpus.store import Store
from specplug.corpus.view import Snapshot, View
from specplug.text.fingerprint import Fingerprint, fingerprint

__all__ = [
    "Added",
    "CorpusInfo",
    "Document",
    "Fingerprint",
    "LiveSegment",
    "Merged",
    "Problem",
    "Removed",
    "Segment",
    "Snapshot",
    "Store",
    "Synced",
    "View",
    "fingerprint",
    "tokenized",
]
