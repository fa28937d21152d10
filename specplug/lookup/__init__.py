"""Lookup of drafts in a row's own text, its references and finished responses: one algorithm in three forms.

    layout      constants, and all memory as one tuple of tensors
    arithmetic  numbers that decide
    counts      the rows of hits and tries, and what they start from
    plain       the reference: readable, one row at a time
    compiled    the same functions for CPUs, compiled by numba
    kernels     the same functions for GPUs, in Triton

All forms write the same bits.  A step is `scan` and then `draft`; `remember` enters a finished response, `layout.begin`
resets slots, and `layout.halve` runs before every `HALVED_EVERY`-th step.

    texts [S, L] --scan--> matches, counts --draft--> ids, confidence      texts --remember--> ring, owners, buckets
                                             ^ ring, owners, buckets, by the slot's owner alone
"""
