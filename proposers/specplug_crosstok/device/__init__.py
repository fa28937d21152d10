"""The proposer `crosstok` on the engine's device: nothing is read back, and nothing waits.

proposer     the proposer: from a batch of the engine to drafts
step         what a step computes there, in parts that a GPU runs as CUDA graphs
drawing      which ids the model drafts, and their probabilities
written      draft tokens, kept until their verdict
acceptance   what drafts turned out to be worth
"""
