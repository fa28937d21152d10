"""The corpus store: documents to draft from, tokenised and sorted, in files that processes share.

    sources      what operators have, as texts; documents: a text's tokens, and its re-tokenized prefixes
    store        adding, removing, listing and verifying, for processes that may write
    view         the store as a serving process reads it
    tenant       one tenant's folder, as readers and writers see it
    changing     one change of a tenant, by the process that has its lock; adding and removing: the kinds of change
    manifest     the list of a tenant's segments; replacing it commits a change
    segment      one immutable file, mapped into memory; building makes its contents
    inspecting   full checks, and counts of what follows a context
    files        opening, atomic writing and locking of files; sealed: JSON with a checksum

Nothing here imports an engine; numba is imported only to sort text.
"""
