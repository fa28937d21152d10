"""The corpus store: documents to draft from, tokenised and sorted, in files that processes share.

    fingerprint  the identity of the store's tokenizer
    documents    a text's tokens, and its re-tokenized prefixes
    store        adding, removing, listing, merging and verifying, for processes that may write
    view         the store as a serving process reads it
    segment      one immutable file, mapped into memory; layout describes its contents
    manifest     the list of a tenant's segments; replacing it commits a change

Each of the other modules implements one part of these.  Nothing here imports an engine; numba is imported only to sort
text.
"""

from specplug.corpus.documents import Document, tokenized
from specplug.corpus.segment import Segment
from specplug.corpus.status import Added, CorpusInfo, Merged, Problem, Removed, Synced
from specplug.corpus.store import Store
from specplug.corpus.view import LiveSegment, Snapshot, View
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
