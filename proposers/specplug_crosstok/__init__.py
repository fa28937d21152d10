"""Drafts from a smaller model, whose tokenizer may be another one than the target's.

options      the proposer's settings
memory       the memory that it declares
choice       which of the two forms below drafts
loading      the draft model, and its tokenizer beside the target's
proposer     the form for batches in the host's memory: from a batch of the engine to drafts
requests     the draft model's context of each running request
drawing      which ids the model drafts, and their probabilities
writing      drafted ids as draft tokens of the target
acceptance   what each route's drafts turned out to be worth
kinds        the kinds of tokens by which that is counted
device       the form for batches on a GPU
"""
