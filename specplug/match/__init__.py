"""The match index: finds earlier occurrences of the end of a growing text, and drafts their continuations.

    options     its settings
    cpu         the index as kernels compiled by numba, from the tree of one text to the drafts of a batch

Property tests compare the kernels with the same operations in plain Python, module by module: tests/match/reference.

An implementation for another device becomes a package next to `cpu` with the same operations.  Only proposers import
these modules, because they import numba.
"""
