"""Bookkeeping around a proposer's step on a GPU: one Triton kernel before it and one after it.

The tensor operations of `specplug.pipeline.draft` are the reference.
"""
