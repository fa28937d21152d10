"""The draft stage's step for batches in host memory, compiled by numba.  `specplug.pipeline.draft` is the reference.

`kernels` holds a batch's rows and the bookkeeping, `trimming` the cut, and `host_function` runs them around a proposer.
"""
