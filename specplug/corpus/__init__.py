"""The corpus store: documents to draft from, tokenised and sorted, in files that processes share.

    fingerprint  whose tokens they are
    documents    a text's tokens, and how it begins after other text
    store        adding, removing, listing, merging and verifying, by whoever may write
    view         what a serving process sees
    segment      one immutable file, mapped into memory; layout: what is in it
    manifest     which segments a tenant has: replacing it commits a change

The rest has a part of it each.  Nothing here imports an engine; numba is imported when text is to be sorted.
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
