"""Drafts from a smaller model, whose tokenizer may be another one than the target's.

options        the proposer's settings
loading        the draft model, its tokenizer beside the target's, and the memory that it takes
proposer       from a batch of the engine to drafts
host_batches   the bridge between batches in host memory and the model's device
step           what a step computes on that device, in parts that a GPU runs as CUDA graphs, and what it drafted
drawing        which ids the model drafts, and their probabilities
acceptance     what each kind of token turned out to be worth
"""
