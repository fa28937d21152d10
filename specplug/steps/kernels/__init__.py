"""Bookkeeping around a proposer's step on a GPU: one Triton kernel before it and one after it.

The tensor operations of `specplug.steps.draft_stage` are the reference.
"""
