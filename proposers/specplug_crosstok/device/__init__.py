"""The proposer `crosstok` on the engine's device: nothing is read back, and nothing waits.

proposer     the proposer: from a batch of the engine to drafts
drawing      which ids the model drafts, and their probabilities
acceptance   what drafts turned out to be worth
"""
