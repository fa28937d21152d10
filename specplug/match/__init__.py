"""The match index: finds earlier places whose text equals the end of a growing text, and drafts what follows them.

    proposer     a `Proposer` over the index; `options` are its settings
    cpu          the index as kernels compiled by numba, from the tree of one text to the drafts of a batch
    reference    the same operations in plain Python, module by module; property tests hold the kernels to them

A form for another device becomes a package beside `cpu` with the same operations.  Only proposers import these modules,
because numba is imported with them.
"""
