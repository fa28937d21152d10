"""The draft stage's step for batches in host memory, compiled by numba.  `specplug.pipeline.draft` is the reference.

`columns` holds a batch's rows, `kernels` the compiled functions, and `step` runs them around a proposer.
"""
