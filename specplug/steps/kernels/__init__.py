"""Device kernels in Triton, each held to its reference: one before a proposer's step, one after it, one that trims.

The references are the tensor operations of `specplug.steps.draft_stage` and `specplug.steps.trim`.
"""
