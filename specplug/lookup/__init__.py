"""Lookup of drafts in own text, references, responses, siblings and corpora: one algorithm in three forms.

    layout      constants, and all memory as one tuple of tensors
    storage     that memory between steps: allocated, begun, joined, cleared
    arithmetic  whole numbers that decide: weights, classes, hashes
    counts      the rows of hits and tries, and what they start from
    plain       the reference: readable, one row at a time
    compiled    the same functions for CPUs, compiled by numba; `trees` is its part for trees
    candidates  where drafts may come from, and
    learning    what new tokens say about drafts: in `plain` and `compiled` alike
    kernels     the same functions for GPUs, in Triton, and the files that it lists
    corpora     static texts by tenant: their memory, and how it is replaced; `corpus_search` is the reference of their
                search, and `corpus_kernels` the form for GPUs

All forms write the same bits.  A step is `ingest`, `scan`, `search` if there are corpora, and `draft`; `remember`
stores a finished response, `storage.begin` resets slots, `storage.join` makes a slot a sibling, and `storage.halve`
runs before every `HALVED_EVERY`-th step.

    engine's table --ingest--> texts [S, L] --scan--> matches, counts --draft--> ids, confidence, parents
    texts --remember, scan--> ring, owners, buckets --draft, by the slot's owner and group alone--> ids
"""
